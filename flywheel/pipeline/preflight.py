"""Check what a run needs before it begins, so that it fails in the first second.

All that can be known of the parameters is refused here, by name, before an iteration freezes its copy of them.
"""

from __future__ import annotations

import importlib.util
import shutil

import httpx

from flywheel.config import PolicySettings, PromotionSettings, Settings
from flywheel.config.workspace import Workspace
from flywheel.envs import registry
from flywheel.envs.browser.driver import chromium
from flywheel.envs.tasks import drawing as synthesis
from flywheel.evaluation import gate
from flywheel.policy import checkpoint
from flywheel.policy.client import endpoint
from flywheel.rewards.scorer import ScorerSet
from flywheel.store.versioning import backup
from flywheel.training.rl import algorithm
from flywheel.utils.errors import BadInput, DiskFull, PolicyError, PolicyTimeout, errors_of_setting
from flywheel.utils.progress import announce

# Two default iterations write about 150 MB, DVC keeps a copy of each file, and Chromium wants room in /tmp.
NEEDED_MB = 500
_LOOK_S = 10


def run_preflight(ws: Workspace, settings: Settings, iteration: int = 1) -> None:
    """Check that `iteration` can be run with these settings: disk, model, devices, recordings, back ends, servers.

    The workspace is not written; a model named by its Hugging Face name is fetched, and servers are asked. Raises
    BadInput, ModelError, DiskFull, PolicyError (no server answers, or one that cannot be used), and says how to mend
    it.
    """
    free_mb = shutil.disk_usage(ws.root).free // 2**20
    if free_mb < NEEDED_MB:
        raise DiskFull(f"{free_mb} MB free, a run needs {NEEDED_MB}", where=ws.root, fix="free some space")
    with errors_of_setting("policy.base"):
        checkpoint.check_checkpoint(checkpoint.resolve_checkpoint(settings.policy.base, ws.root))
    _check_devices(settings)
    algorithm.check_algorithm(settings.rl.algorithm)
    _check_recording(ws, settings)
    _check_promotion(settings.promotion)
    registry.check_backends(settings, synthesis.check_task_settings(settings, iteration, ws.root))
    if settings.synthesis.num_grounding_examples:
        chromium.find_chromium(settings.sandbox)  # it draws the general screens
    ScorerSet(settings)
    backup.check_remote_url(settings.versioning.remote)
    if settings.language_model.endpoint:
        _check_language_model(settings)
    if settings.sandbox.backend == "manager":
        from flywheel.envs.remote import client  # its HTTP client takes a sixth of a second to load

        client.check_manager_settings(settings)
    if settings.policy.backend == "openai":
        _check_policy_servers(settings.policy)


def _check_devices(settings: Settings) -> None:
    blocks = {name: getattr(settings, name) for name in ("policy", "ct", "sft", "rl")}
    wanted = [f"{name}.device" for name, block in blocks.items() if block.device == "cuda"]
    if wanted and settings.cluster.engine == "local":  # else the machines that train are others
        import torch  # takes seconds: only where it is asked

        if not torch.cuda.is_available():
            raise BadInput("this machine has no GPU that torch can use", where=wanted[0], fix="set it to auto or cpu")
    wanted = [name for name in ("ct", "sft", "rl") if blocks[name].engine == "deepspeed"]
    if wanted and importlib.util.find_spec("deepspeed") is None:
        raise BadInput(
            "DeepSpeed is not installed", where=f"{wanted[0]}.engine", fix="pip install 'flywheel[deepspeed]'"
        )


def _check_recording(ws: Workspace, settings: Settings) -> None:
    chosen = settings.recording
    folder = ws.resolve(chosen.folder)
    if not chosen.sessions_per_iteration:
        return
    if not folder.is_dir():
        raise BadInput("no recordings folder", where=folder, fix="set recording.folder, or sessions_per_iteration to 0")
    if chosen.recognizer == "whisper":
        from flywheel.recordings.asr import (
            recognizer,
            whisper,  # takes seconds: only where it is asked
        )

        with errors_of_setting("recording.whisper_model"):
            whisper.find_whisper_checkpoint(recognizer.locate_whisper_checkpoint(chosen, ws.root).whisper_model)


def _check_policy_servers(policy: PolicySettings) -> None:
    """Of several, one that does not answer is told: it is left out until it does. One that has not the model, or wants
    another key, would never do."""
    silent: list[PolicyError] = []
    for server in policy.servers:
        try:
            endpoint.describe_policy_server(server)
        except (endpoint.PolicyUnreachable, PolicyTimeout) as error:
            silent.append(error)
    if len(silent) == len(policy.servers):
        raise (
            silent[0]
            if len(silent) == 1
            else PolicyError(
                f"none of {len(silent)} servers answers: "
                + "; ".join(f"{error.where}: {error.what}" for error in silent),
                where="policy.endpoint",
                fix="start them, or see policy.endpoint",
            )
        )
    for error in silent:
        announce("policy", f"{error.where} is left out until it answers: {error.what}")


def _check_language_model(settings: Settings) -> None:
    """Whether anything answers at its address; what it answers is the server's own affair."""
    address = settings.language_model.endpoint
    try:
        httpx.get(address.rstrip("/") + "/models", timeout=min(settings.language_model.timeout_s, _LOOK_S))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise BadInput(
            f"no language model answers: {checkpoint.summarise_error(error)}",
            where=f"language_model.endpoint: {address}",
            fix="start the server, or leave the endpoint empty to use rules",
        ) from None


def _check_promotion(rule: PromotionSettings) -> None:
    if rule.rule != "always" and rule.tasks < (least := gate.count_fewest_tasks(rule)):
        raise BadInput(
            f"{rule.tasks} tasks are too few for the gate to promote any model",
            where="promotion.tasks",
            fix=f"set it to {least} or more, or raise promotion.margin",
        )
