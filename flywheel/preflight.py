"""What a run needs, looked at before it begins, so that it fails in the first second and not in the fifth minute.

All that can be known of the parameters is refused here, by name, before an iteration freezes its copy of them.
"""

from __future__ import annotations

import importlib.util
import shutil

import httpx

from flywheel.environments import kind
from flywheel.errors import BadInput, DiskFull, PolicyError, PolicyTimeout, of_parameter
from flywheel.evaluation import gate
from flywheel.policy import checkpoint, endpoint
from flywheel.progress import tell
from flywheel.sandbox import chromium
from flywheel.scoring.panel import Panel
from flywheel.settings import Policy, Promotion, Settings
from flywheel.store import remote
from flywheel.synthesis import check as synthesis
from flywheel.training.rl import algorithm
from flywheel.workspace import Workspace

# Two default iterations write about 150 MB, DVC keeps a copy of each file, and Chromium wants room in /tmp.
NEEDED_MB = 500
_LOOK_S = 10


def check(ws: Workspace, settings: Settings, iteration: int = 1) -> None:
    """Whether `iteration` can be run with these settings. Nothing is written.

    Raises BadInput, ModelError, DiskFull, PolicyError (no server answers, or one that cannot be used), and says how to
    mend it.
    """
    free_mb = shutil.disk_usage(ws.root).free // 2**20
    if free_mb < NEEDED_MB:
        raise DiskFull(f"{free_mb} MB free, a run needs {NEEDED_MB}", where=ws.root, fix="free some space")
    with of_parameter("policy.base"):
        checkpoint.check(checkpoint.resolve(settings.policy.base, ws.root))
    _devices(settings)
    algorithm.check(settings.rl.algorithm)
    _recording(ws, settings)
    _promotion(settings.promotion)
    kind.check(settings, synthesis.check(settings, iteration, ws.root))
    if settings.synthesis.general_samples:
        chromium.find(settings.sandbox)  # it draws the general screens
    Panel(settings)
    remote.check(settings.versioning.remote)
    if settings.language_model.endpoint:
        _language_model(settings)
    if settings.sandbox.backend == "manager":
        from flywheel.environments import managed  # its HTTP client takes a sixth of a second to load

        managed.check(settings)
    if settings.policy.backend == "openai":
        _policy_servers(settings.policy)


def _devices(settings: Settings) -> None:
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


def _recording(ws: Workspace, settings: Settings) -> None:
    chosen = settings.recording
    folder = ws.resolve(chosen.folder)
    if not chosen.sessions_per_iteration:
        return
    if not folder.is_dir():
        raise BadInput("no recordings folder", where=folder, fix="set recording.folder, or sessions_per_iteration to 0")
    if chosen.recognizer == "whisper":
        from flywheel.recording.recognizers import recognizer, whisper  # takes seconds: only where it is asked

        with of_parameter("recording.whisper_model"):
            whisper.find(recognizer.located(chosen, ws.root).whisper_model)


def _policy_servers(policy: Policy) -> None:
    """Of several, one that does not answer is told: it is left out until it does. One that has not the model, or wants
    another key, would never do."""
    silent: list[PolicyError] = []
    for one in policy.servers:
        try:
            endpoint.look(one)
        except (endpoint.Unreachable, PolicyTimeout) as error:
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
        tell("policy", f"{error.where} is left out until it answers: {error.what}")


def _language_model(settings: Settings) -> None:
    """Whether anything answers at its address; what it answers is the server's own affair."""
    address = settings.language_model.endpoint
    try:
        httpx.get(address.rstrip("/") + "/models", timeout=min(settings.language_model.timeout_s, _LOOK_S))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise BadInput(
            f"no language model answers: {checkpoint.reason(error)}",
            where=f"language_model.endpoint: {address}",
            fix="start the server, or leave the endpoint empty to use rules",
        ) from None


def _promotion(rule: Promotion) -> None:
    if rule.rule != "always" and rule.tasks < (least := gate.fewest_tasks(rule)):
        raise BadInput(
            f"{rule.tasks} tasks are too few for the gate to promote any model",
            where="promotion.tasks",
            fix=f"set it to {least} or more, or raise promotion.margin",
        )
