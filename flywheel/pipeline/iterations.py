"""Decide when a run is due and which iterations it makes, check that they can run, and begin them."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx

from flywheel import config
from flywheel.config import OperationsSettings, Settings, params_file
from flywheel.config.workspace import Workspace, iteration_label, iteration_run_id, workspace_name
from flywheel.envs import registry
from flywheel.envs.base import Task
from flywheel.envs.browser.driver import chromium
from flywheel.envs.tasks import drawing as synthesis
from flywheel.evaluation import gate
from flywheel.pipeline import dag, resource_plan
from flywheel.policy import checkpoint
from flywheel.policy.client import endpoint
from flywheel.recordings import reviewing, selection
from flywheel.rewards.scorer import ScorerSet, reward_settings
from flywheel.rollout.solvers import load_solvers
from flywheel.store import manifest, partitions, routing_decisions
from flywheel.store.catalog import database
from flywheel.store.versioning import backup, dvc_files, git_tags, stage_records
from flywheel.training.rl import algorithm
from flywheel.utils.errors import (
    BadInput,
    DataError,
    DiskFull,
    FlywheelError,
    PolicyError,
    PolicyTimeout,
    errors_of_setting,
)
from flywheel.utils.files import write_text
from flywheel.utils.progress import announce


def plan_iterations(
    ws: Workspace, settings: Settings, iterations: int | None = None, iteration: int | None = None
) -> list[int]:
    """Return the numbers of the iterations that a run is to make, oldest first; nothing is begun.

    iteration: the only one wanted; it overrides `iterations`. iterations: how many, counting an incomplete one as the
    first; None: those that a killed run has left to complete, else `settings.iterations` many. Raises BadInput for an
    iteration out of order, and as `check_iteration_complete` and `git_tags.check_line_ends`.
    """
    git_tags.check_line_ends(ws.root)
    newest = newest_iteration(ws)
    if iteration is not None:
        if not 1 <= iteration <= newest + 1:
            raise BadInput(
                f"iteration {iteration} cannot be next", where="--iteration", fix=f"the next is {newest + 1}"
            )
        if iteration == newest + 1 and newest and not check_iteration_complete(ws, newest):
            raise BadInput(f"iteration {newest} is not complete", where="--iteration", fix="type `flywheel run` first")
        return [iteration]
    interrupted = _interrupted_iterations(ws)
    if interrupted and iterations is None:
        return interrupted
    first = interrupted[0] if interrupted else newest + 1
    if not interrupted and newest and not check_iteration_complete(ws, newest):
        first = newest
    return list(range(first, first + (iterations or settings.iterations)))


def check_iteration(ws: Workspace, settings: Settings, number: int) -> None:
    """Check that the iteration `number` can run, by its own parameters where it was begun, else by `settings`.

    settings: the workspace's. Raises as `run_preflight` and `backup.check_remote_url`, BadInput where its own
    parameters are missing or wrong.
    """
    backup.check_remote_url(ws, settings.versioning.remote)
    if not ws.frozen_params(number).exists():
        run_preflight(ws, settings, number)
        return
    with stage_records.name_params_file_in_errors(ws, number):
        run_preflight(ws, stage_records.load_iteration_params(ws, number), number)


def list_unused_settings(ws: Workspace, iteration: int, settings: Settings) -> dict[str, Any]:
    """Return the parameters whose values in `settings` a begun iteration does not use, as dotted name -> its own value.

    Values are as in JSON. Left out are `iterations` and the blocks `cluster`, `operations` and `versioning`, which
    count for the workspace. {} for an iteration that is not begun. Raises BadInput where its own parameters are missing
    or wrong.
    """
    if not ws.frozen_params(iteration).exists():
        return {}
    own, now = (
        one.model_dump(mode="json", exclude={*stage_records.WORKSPACE_BLOCKS, "iterations"})
        for one in (stage_records.load_iteration_params(ws, iteration), settings)
    )
    return dict(_list_differences(own, now, ""))


def _list_differences(own: Any, now: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(own, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*own, *now)):
            yield from _list_differences(own.get(key), now.get(key), f"{name}.{key}".lstrip("."))
    elif own != now:
        yield name, own


def check_overrides_used(ws: Workspace, overrides: Iterable[str], settings: Settings, todo: Sequence[int]) -> None:
    """Check that the parameters of `--set` are used by at least one iteration of the run.

    overrides: dotted names of parameters or blocks. settings: the workspace's, with their new values. todo: numbers of
    the iterations, at least one. Raises BadInput naming the unused ones, where all iterations are begun and the first
    has other values; also where its own parameters are wrong.
    """
    if not all(ws.frozen_params(k).exists() for k in todo):
        return
    differ = list_unused_settings(ws, todo[0], settings)
    unused = [name for name in overrides if any(f"{one}.".startswith(f"{name}.") for one in differ)]
    if unused:
        label = iteration_label(todo[0])
        raise BadInput(
            f"{', '.join(unused)} would not be used: iteration {label} goes on with the parameters it began with",
            where=f"--set; {ws.relative(ws.frozen_params(todo[0]))}",
            fix="leave it out, or begin anew after `flywheel iteration drop`",
        )


def read_interrupted_overrides(ws: Workspace) -> dict[str, Any]:
    """Read the command-line settings of a killed run that has iterations left to complete, by dotted name.

    They are the values of `--set`. Returns {} without such a run. Raises as `check_iteration_complete`.
    """
    return _read_run_target(ws).get("settings", {}) if _interrupted_iterations(ws) else {}


def begin_iteration(
    ws: Workspace, iteration: int, settings: Settings, later: selection.DeferSession | None = None
) -> Settings:
    """Begin an iteration, or resume it: write its parameters, its list of sessions and its dvc.yaml.

    A resumed iteration keeps the parameters that it began with; those that are new in this version are added to its
    file with their defaults. Its stages are those that this version declares, until it is complete; the outputs of
    stages that are not declared any more are removed, since every query would count them. Waits for DVC's lock; the
    next call writes what an interrupted one did not.

    iteration: its number, from 1. settings: the parameters of a new iteration. later: the sessions to choose last, as
    for `selection.choose_sessions`; None: none. Returns the iteration's own parameters. Raises DataError where the
    iteration before it was not begun, or a dvc.lock is damaged; BadInput where its own parameters are wrong, or the
    recordings folder is missing; VersioningError where DVC fails or is held for five minutes; DiskFull.
    """
    begun = stage_records.list_iterations(ws)
    if iteration > 1 and iteration - 1 not in begun:
        raise DataError(
            f"iteration {iteration_label(iteration - 1)} has not been begun",
            where=ws.root / "iterations",
            fix="run it first",
        )
    with dvc_files.lock_dvc(ws):
        frozen = ws.frozen_params(iteration)
        if not frozen.exists():
            write_text(frozen, config.dump_settings(settings))
        elif not dvc_files.is_iteration_complete(ws, iteration):
            params_file.add_missing_settings(frozen)
        settings = stage_records.load_iteration_params(ws, iteration)
        routing_decisions.init_decisions(ws, iteration)
        own = settings.recording
        annotated = settings.annotation.folder, settings.annotation.sessions_per_iteration
        accepted = reviewing.acceptance_rule(ws, settings)
        limits = own.sessions_per_iteration, own.imports_per_iteration
        selection.choose_sessions(ws, iteration, own.folder, *limits, later, annotations=annotated, accepted=accepted)
    if not dvc_files.is_iteration_complete(ws, iteration):
        _write_dvc_yaml(ws, iteration, list(settings.synthesis.domains))
        if orphaned := stage_records.remove_orphaned_outputs(ws, iteration):
            announce("data", f"removed what no stage of {iteration_label(iteration)} writes: {', '.join(orphaned)}")
    dvc_files.set_newest_iteration(ws, max([*begun, iteration]))
    return settings


def record_base_model(ws: Workspace, settings: Settings) -> None:
    """Record the model that the workspace begins from as the promotion of iteration 0; an existing record stays.

    settings: `policy.base` names the model; one on the Hugging Face hub is fetched if needed. Raises ModelError where
    it is not there, or cannot be fetched or read, DiskFull.
    """
    first = checkpoint.resolve_checkpoint(settings.policy.base, ws.root)
    manifest.init_first_checkpoint(ws, checkpoint.checkpoint_digest(first), settings.policy.base)


def newest_iteration(ws: Workspace) -> int:
    """Return the number of the newest iteration that was begun; 0 before the first.

    Raises DataError where DVC's file of an iteration is lost.
    """
    return max(stage_records.list_iterations(ws), default=0)


def check_iteration_complete(ws: Workspace, iteration: int) -> bool:
    """Tell whether every stage of an iteration is recorded and unchanged, and its report, tag and push are done.

    False for one not begun. Raises DataError where it was complete once and has changed since (it is never run again
    silently), or DVC's file of an iteration is lost; BadInput where its parameters are lost or wrong; VersioningError
    where DVC fails.
    """
    if iteration > newest_iteration(ws):
        return False
    stage_records.load_iteration_params(ws, iteration)  # raises for lost or wrong parameters first
    changed = stage_records.unfinished_stages(ws, stage_records.stage_names(ws, iteration), iteration)
    if changed and dvc_files.is_iteration_complete(ws, iteration):
        stage = stage_records.stage_address(ws, changed[0], iteration)
        path, change = next(iter(stage_records.changed_stages(ws, [iteration])[stage].items()))
        raise DataError(
            f"{path} was changed ({change}) since {stage} was recorded, and a complete iteration is not done again",
            where=ws.root,
            fix=dvc_files.explain_change_repair(ws, iteration, changed[0]),
        )
    return not changed and not ws.closing(iteration).exists()


def _interrupted_iterations(ws: Workspace) -> list[int]:
    """Return the iterations that a killed run was asked for and has not completed."""
    target = _read_run_target(ws)
    return [k for k in range(target["first"], target["last"] + 1) if not check_iteration_complete(ws, k)]


def _read_run_target(ws: Workspace) -> dict[str, Any]:
    """Read what a run was asked for; an empty range of iterations where there is no file, or it is damaged."""
    try:
        target = json.loads(ws.run_target.read_text(encoding="utf-8"))
        return {**target, "first": int(target["first"]), "last": int(target["last"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"first": 1, "last": 0}


def _write_dvc_yaml(ws: Workspace, iteration: int, domains: list[str]) -> None:
    """Write the iteration's dvc.yaml; stages recorded under an older one are recorded again if unchanged."""
    path, text = dvc_files.dvc_yaml_path(ws, iteration), dag.render_dvc_yaml(iteration, domains)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    sound = set(dvc_files.recorded_stages(ws, iteration))
    if sound:
        sound -= {name.partition("@")[0] for name in stage_records.changed_stages(ws, [iteration])}
    write_text(path, text)
    if sound and (count := stage_records.rerecord_changed(ws, iteration, sound)):
        announce(
            "dvc", f"{count} stages of {iteration_label(iteration)} are recorded by the declaration of this version"
        )


# Two default iterations write about 150 MB, DVC keeps a copy of each file, and Chromium wants room in /tmp.
NEEDED_MB = 500
_LOOK_S = 10


def run_preflight(ws: Workspace, settings: Settings, iteration: int = 1) -> None:
    """Check that `iteration` can run with these settings: disk, model, devices, memory, recordings, tasks, servers.

    So a run that cannot work fails in its first second, before an iteration freezes its parameters. The workspace is
    not written; a model of the Hugging Face hub is fetched, servers are contacted, and the suites of `synthesis.worlds`
    are loaded. Raises BadInput naming the parameter, or where a stage needs more memory than is there, ModelError for
    the model, or an outcome reward model, that cannot be used, DiskFull where less than `NEEDED_MB` (500 MB), or than
    an iteration writes, is free, PolicyError where no policy server answers, or one cannot be used, DataError where the
    promotion of the iteration before is damaged, or a suite finds no level that can be won.
    """
    free_mb = shutil.disk_usage(ws.root).free // 2**20
    if free_mb < NEEDED_MB:
        raise DiskFull(f"{free_mb} MB free, a run needs {NEEDED_MB}", where=ws.root, fix="free some space")
    if settings.cluster.engine == "local":  # else other machines train; before weights are fetched
        _check_memory(ws, settings, iteration)
    with errors_of_setting("policy.base"):
        newest = checkpoint.resolve_checkpoint(settings.policy.base, ws.root)
        checkpoint.check_checkpoint(newest)
    if ws.promotion(iteration - 1).exists():
        newest = checkpoint.resolve_checkpoint(manifest.read_promotion(ws, iteration - 1)["model"], ws.root)
        checkpoint.check_checkpoint(newest)
    if settings.adapter.method != "none" and checkpoint.is_adapter(newest):
        from flywheel.policy.adapter import check_adapter_form  # imports torch

        check_adapter_form(newest, settings.adapter)
    _check_devices(settings)
    algorithm.check_algorithm(settings.rl.algorithm)
    _check_recording(ws, settings)
    rule = settings.promotion
    if rule.rule != "always" and rule.tasks < (least := gate.count_fewest_tasks(rule)):
        raise BadInput(
            f"{rule.tasks} tasks are too few for the gate to promote any model",
            where="promotion.tasks",
            fix=f"set it to {least} or more, or raise promotion.margin",
        )
    panels = ScorerSet(settings), ScorerSet(reward_settings(settings))
    for each in panels:
        _ = each.versions  # opens each scorer

    def check_tasks(tasks: list[Task]) -> None:
        for each in panels:
            each.check_tasks(tasks)
        if tasks and tasks[0].split == "train" and settings.synthesis.page_grounding_fraction:
            from flywheel.synthesis import page_grounding  # imports browsers, for which `status` need not wait

            page_grounding.check_page_tasks(tasks, settings, ws.root)
        if tasks and tasks[0].split == "train" and settings.rollout.corrections_per_task:
            with errors_of_setting("synthesis.manifests"):
                load_solvers(tasks, settings, ws.root)  # reads the proofs of pages' tasks

    played = synthesis.check_task_settings(settings, iteration, ws.root, check_tasks)
    registry.check_backends(settings, played)
    if settings.synthesis.num_grounding_examples:
        chromium.find_chromium(settings.sandbox)  # it renders the general screens, driven by Playwright
        chromium.check_playwright_driver()
    if settings.language_model.endpoint:
        _check_language_model(settings)
    if settings.sandbox.backend == "manager":
        from flywheel.envs.remote import client  # its HTTP client takes a sixth of a second to load

        client.check_manager_settings(settings)
    if settings.policy.backend == "openai":
        _check_policy_servers(ws, settings)


def _check_memory(ws: Workspace, settings: Settings, iteration: int) -> None:
    begun = ws.frozen_params(iteration).exists()
    if close := resource_plan.check_resources(ws, settings, resource_plan.read_device_memory(), begun=begun):
        announce("plan", close)


def _check_devices(settings: Settings) -> None:
    blocks = {name: getattr(settings, name) for name in ("policy", "ct", "sft", "rl")}
    wanted = [f"{name}.device" for name, block in blocks.items() if block.device == "cuda"]
    if wanted and settings.cluster.engine == "local":  # else other machines train
        import torch  # takes seconds: only where a GPU is asked for

        if not torch.cuda.is_available():
            raise BadInput("this machine has no GPU that torch can use", where=wanted[0], fix="set it to auto or cpu")
    wanted = [name for name in ("ct", "sft", "rl") if blocks[name].engine == "deepspeed"]
    if wanted and importlib.util.find_spec("deepspeed") is None:
        raise BadInput(
            "DeepSpeed is not installed", where=f"{wanted[0]}.engine", fix="pip install 'flywheel[deepspeed]'"
        )
    bits = {f"{name}.optimizer": blocks[name] for name in ("ct", "sft", "rl") if blocks[name].optimizer == "adamw_8bit"}
    if settings.adapter.method != "none" and settings.adapter.base_dtype == "nf4":
        for name in ("ct", "sft", "rl"):
            own = f", {name}.device" if blocks[name].device == "cpu" else ""
            bits[f"adapter.base_dtype{own}"] = blocks[name]
    if bits and settings.cluster.engine == "local":
        from flywheel.policy.model import require_bitsandbytes

        for where, block in bits.items():
            require_bitsandbytes(where, block.device)


def _check_recording(ws: Workspace, settings: Settings) -> None:
    chosen = settings.recording
    folder = ws.resolve(chosen.folder)
    if not chosen.sessions_per_iteration:
        return
    if not folder.is_dir():
        raise BadInput("no recordings folder", where=folder, fix="set recording.folder, or sessions_per_iteration to 0")
    if chosen.recognizer == "whisper":
        from flywheel.recordings.asr import recognizer, whisper  # takes seconds: only where it is used

        with errors_of_setting("recording.whisper_model"):
            whisper.find_whisper_checkpoint(recognizer.locate_whisper_checkpoint(chosen, ws.root).whisper_model)


def _check_policy_servers(ws: Workspace, settings: Settings) -> None:
    """Raise PolicyError where no server answers, or one lacks the model, wants another key, or was started without what
    adapters and sleep mode need.

    A single silent one among several is only announced: it is left out until it answers.
    """
    silent: list[PolicyError] = []
    policy, share = settings.policy, None
    if policy.sleeps_while_training:
        plan = resource_plan.plan_resources(ws, settings, resource_plan.read_device_memory())
        share = plan.server.most if plan.server else 1.0
    for server in policy.servers:
        try:
            endpoint.describe_policy_server(server)
            if settings.adapter.method != "none" or share is not None:
                from flywheel.policy.client.publishers import check_adapter_server  # imports torch

                check_adapter_server(server, settings.adapter, share)
        except (endpoint.PolicyUnreachable, PolicyTimeout) as error:
            silent.append(error)
    if len(silent) == len(policy.servers):
        if len(silent) == 1:
            raise silent[0]
        told = "; ".join(f"{error.where}: {error.what}" for error in silent)
        what, fix = f"none of {len(silent)} servers answers: {told}", "start them, or see policy.endpoint"
        raise PolicyError(what, where="policy.endpoint", fix=fix)
    for error in silent:
        announce("policy", f"{error.where} is left out until it answers: {error.what}")


def _check_language_model(settings: Settings) -> None:
    """Check that a server answers at the language model's address; the content of its answer does not matter."""
    address = settings.language_model.endpoint
    try:
        httpx.get(address.rstrip("/") + "/models", timeout=min(settings.language_model.timeout_s, _LOOK_S))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise BadInput(
            f"no language model answers: {checkpoint.summarise_error(error)}",
            where=f"language_model.endpoint: {address}",
            fix="start the server, or leave the endpoint empty to use rules",
        ) from None


INGEST = "ingest"


class LoopHalted(FlywheelError):
    """Signal that a rule (`operations.halt_after_*`) asks for a person before another iteration begins."""


@dataclass(frozen=True)
class DueRun:
    """Hold a run that is due.

    key: an idempotency key, the same until the run has begun. parameters: of the flow run: `until`, the stage that it
    ends with, or None. why: the reason in words.
    """

    key: str
    parameters: dict[str, Any]
    why: str


def due_runs(ws: Workspace, settings: Settings) -> list[DueRun]:
    """List the runs that new recordings or demonstrations trigger, at most one; nothing is started.

    settings: `operations.trigger_min_recordings` and `trigger_min_demonstrations` are the least numbers that trigger a
    run; 0: never. Recordings that no iteration has ingested count where none is at work; demonstrations are what the
    newest iteration has taken in, where its stage `ingest` alone is done. The workspace's name and the iteration's id
    are made and stored where they are not there. Raises DataError where DVC's file of an iteration is lost, or its
    manifest, trajectories or id are damaged; DiskFull.
    """
    rules = settings.operations
    if not (rules.trigger_min_recordings or rules.trigger_min_demonstrations):
        return []
    k = newest_iteration(ws)
    if k == 0 or dvc_files.is_iteration_complete(ws, k):
        if rules.trigger_min_recordings and (new := count_new_recordings(ws, settings)) >= rules.trigger_min_recordings:
            key = f"{workspace_name(ws)}:ingest:{iteration_label(k + 1)}"
            return [DueRun(key, {"until": INGEST}, f"{new} new recordings are there")]
        return []
    if not rules.trigger_min_demonstrations or dvc_files.recorded_stages(ws, k) != [INGEST]:
        return []
    rows = partitions.read_partition(ws, "trajectories", k, INGEST, ["status"]).to_pylist()
    if (taken := sum(row["status"] != "invalid" for row in rows)) >= rules.trigger_min_demonstrations:
        words = f"iteration {iteration_label(k)} has taken in {taken} demonstrations"
        return [DueRun(f"{workspace_name(ws)}:iterate:{iteration_run_id(ws, k)}", {"until": None}, words)]
    return []


def count_missing_recordings(ws: Workspace, settings: Settings) -> int:
    """Count how many more new recordings are needed before the next iteration begins with them; 0: enough are there.

    settings: blocks `operations` and `recording` count. Raises as `count_new_recordings`.
    """
    enough = settings.operations.trigger_min_recordings or settings.recording.sessions_per_iteration
    return max(0, enough - count_new_recordings(ws, settings))


def count_new_recordings(ws: Workspace, settings: Settings) -> int:
    """Count the recordings in `recording.folder` of `settings` that no iteration has ingested.

    They are its folders, hidden ones left out; 0 where there is no such folder. The count is cached until the folder or
    the newest manifest changes, since this is called every second. Raises DataError where DVC's file of an iteration is
    lost, or its manifest damaged.
    """
    folder, last = ws.resolve(settings.recording.folder), newest_iteration(ws)
    if not folder.is_dir():
        return 0
    marks = (folder.stat().st_mtime_ns, ws.manifest(last).stat().st_mtime_ns if last else 0)
    return _count_folders(ws, folder, last, marks)


@lru_cache(maxsize=1)
def _count_folders(ws: Workspace, folder: Path, last: int, marks: tuple[int, int]) -> int:
    taken = set(manifest.read_manifest(ws, last).sessions) if last else set()
    return sum(1 for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".") and one.name not in taken)


def raise_if_halted(ws: Workspace, rules: OperationsSettings) -> None:
    """Raise LoopHalted where a rule (`operations.halt_after_*`) says that a person should look at the last iterations.

    rules: block `operations`; a number of 0 never halts. Iterations of which no stage has ended do not count; where
    there are fewer iterations than the rule's number, it does not halt. Raises DataError for a damaged file of these
    iterations, and as `query_catalog`.
    """
    longest = max(rules.halt_after_rejected, rules.halt_after_empty)
    if not longest or not newest_iteration(ws):
        return
    newest = (
        f"SELECT promoted, to_sft FROM iterations WHERE minutes IS NOT NULL ORDER BY iteration DESC LIMIT {longest}"
    )
    last = database.query_catalog(ws, newest).to_pylist()
    for parameter, count, bad, words in (
        ("halt_after_rejected", rules.halt_after_rejected, lambda row: row["promoted"] is False, "were not promoted"),
        ("halt_after_empty", rules.halt_after_empty, lambda row: row["to_sft"] == 0, "sent no trajectory to SFT"),
    ):
        if count and len(last) >= count and all(map(bad, last[:count])):
            raise LoopHalted(
                f"the last {count} iterations {words}, so no other is begun without a person",
                where=f"operations.{parameter}",
                fix="look into the report; `flywheel run` goes on all the same",
            )
