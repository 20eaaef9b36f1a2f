"""Pretrain, evaluate, serve and merge models, and play counterfactuals with them: `model ...`."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from flywheel.cli.command_names import echo_with_commands
from flywheel.cli.options import JSON_OPTION, WORKSPACE_OPTION, parse_overrides, set_option
from flywheel.config.workspace import Workspace
from flywheel.utils.errors import BadInput, DiskFull
from flywheel.utils.files import remove_unfinished


@click.command(epilog="Example: flywheel model pretrain --out .flywheel/pretrain --processes 2")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder for the state, the log and the checkpoint (base/).",
)
@click.option("--steps", type=click.IntRange(1), default=12_000, help="Gradient steps in total.")
@click.option(
    "--vision-steps", type=click.IntRange(0), default=7_000, help="The first of them, which train vision alone."
)
@click.option("--copying", is_flag=True, help="Train copying from texts; needs --init-from and --vision-steps 0.")
@click.option("--seed", type=int, default=7)
@click.option("--processes", type=click.IntRange(1), default=2, help="Processes that share each batch.")
@click.option("--init-from", type=click.Path(path_type=Path), help="Checkpoint to start from; default: random weights.")
@click.option(
    "--replace",
    type=click.Path(path_type=Path),
    help="Checkpoint to put the new one in place of at the end, if it is no worse in any figure of `bench base`.",
)
@click.option("--engine", type=click.Choice(["torch", "deepspeed"]), default="torch")
@click.option("--zero-stage", type=click.IntRange(1, 3), default=2, help="ZeRO stage of the engine deepspeed.")
def pretrain_command(
    out: Path,
    steps: int,
    vision_steps: int,
    copying: bool,
    seed: int,
    processes: int,
    init_from: Path | None,
    replace: Path | None,
    engine: str,
    zero_stage: int,
) -> None:
    """Train the small base model on rendered pages. A stopped run resumes; log.jsonl gets losses and success."""
    import logging

    from flywheel.policy.checkpoint import check_checkpoint
    from flywheel.training.pretrain.figures import replace_base
    from flywheel.training.pretrain.pretrainer import OPTIMIZER, PretrainRecipe
    from flywheel.training.pretrain.pretrainer import run_pretraining as train

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if replace:
        check_checkpoint(replace)
    optimizer = OPTIMIZER.model_copy(update={"processes": processes, "engine": engine, "zero_stage": zero_stage})
    chosen = {"seed": seed, "steps": steps, "seeing": vision_steps, "copying": copying, "start": init_from}
    folder = train(PretrainRecipe(out, **chosen, optimizer=optimizer))
    click.echo(f"the checkpoint is {folder}")
    if replace:
        figures = replace_base(folder, replace)
        told = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
        click.echo(f"it is in {replace} now: {told}")


@click.command(epilog="Example: flywheel model serve models/base --port 8000")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1")
@click.option("--port", default=8000, type=click.IntRange(0, 65535), help="0: any free one.")
@click.option("--name", help="Name of the model for callers; default: the folder's name.")
@click.option("--key-variable", help="Environment variable with the API key of callers; default: a new key.")
@click.option("--grace", type=click.FloatRange(0), help="Seconds for open requests at the end; default: 20.")
@set_option("Set a parameter, for example policy.max_num_seqs=32.")
@JSON_OPTION
def serve_command(
    folder: Path, host: str, port: int, name: str, key_variable: str, grace: float, assignments: tuple, as_json: bool
) -> None:
    """Serve a checkpoint as an OpenAI-compatible server. Ctrl-C or SIGTERM ends it."""
    from flywheel import config
    from flywheel.policy.server import process

    values = parse_overrides(assignments)
    if strange := [name for name in values if not name.startswith("policy.")]:
        raise BadInput(
            f"not of the policy: {strange[0]}", where="--set", fix="for example --set policy.max_num_seqs=32"
        )
    own = {name.removeprefix("policy."): value for name, value in values.items()}
    policy = config.parse_settings({"policy": own}, where="--set").policy
    key = os.environ.get(key_variable, "") if key_variable else ""
    if key_variable and not key:
        raise BadInput("the variable is empty or not set", where=f"--key-variable {key_variable}", fix="put the key in")

    def say(ready: process.ServerReady) -> None:
        text = f"serving {ready.model} (weights {ready.weight_version}) at {ready.url}, "
        text += f"to whoever has the key in {ready.key_file}; Ctrl-C ends it"
        click.echo(json.dumps(vars(ready) | {"pid": os.getpid()}) if as_json else text)

    process.serve_policy(
        folder,
        policy,
        host=host,
        port=port,
        name=name or folder.resolve().name,
        key=key or secrets.token_urlsafe(24),
        say=say,
        grace_s=process.GRACE_S if grace is None else grace,
    )


@click.command(epilog="Example: flywheel model eval --tasks 300      (how many by default: operations.checkup_tasks)")
@WORKSPACE_OPTION
@click.option("--tasks", type=click.IntRange(1), help="Number of fresh tasks, at most.")
def eval_command(ws: Workspace, tasks: int | None) -> None:
    """Evaluate the newest model on fresh tasks (a checkup).

    They had no part in training or choosing it. No iteration is made.
    """
    from flywheel import config
    from flywheel.cli.console import RunConsole
    from flywheel.config import run_lock
    from flywheel.maintenance import checkup
    from flywheel.utils.progress import replace_listener

    chosen = config.load_settings(ws.params, {"operations.checkup_tasks": tasks} if tasks else {})
    console = Console()
    with RunConsole(console) as screen, replace_listener(screen), run_lock.hold_workspace(ws):
        found = checkup.run_checkup(ws, chosen)
    click.echo(f"{found}{', as was known before' if found.before else ''}")
    echo_with_commands('`flywheel query "from fresh_evaluations"` shows each episode')


def _change_options(command: Callable) -> Callable:
    """Add an option of each thing that can be changed."""
    options = (
        click.option("--action", help="Do this in its place, as the model writes it; the model goes on from there."),
        click.option("--thought", help="Let the step begin with this thought; the model acts on it."),
        click.option("--instruction", help="Let the model go on with another instruction; the verifier stays."),
        click.option("--temperature", metavar="T", help="Sample at another temperature from the step on."),
        click.option("--model", metavar="FOLDER", help="Let another checkpoint go on from the step."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(
    epilog="Example: flywheel model counterfactual t0123 --step 4 --action \"click(point='<point>49 69</point>')\""
)
@click.argument("trajectory")
@click.option("--step", type=click.IntRange(0), required=True, help="Restore the state before this step.")
@_change_options
@click.option("--runs", type=click.IntRange(1, 256), default=8, help="Of each side: with the change and without it.")
@click.option("--seed", type=int, default=0, help="Of the sampling, on both sides.")
@click.option("--policy", default="", metavar="FOLDER", help="Checkpoint of both sides; default: the one that acted.")
@JSON_OPTION
@WORKSPACE_OPTION
def counterfactual_command(
    ws: Workspace, trajectory: str, step: int, runs: int, seed: int, policy: str, as_json: bool, **changes: str | None
) -> None:
    """Restore a step of a TRAJECTORY, change one thing, and see how often it then succeeds.

    The same is played without the change, with the same seeds. What is played is stored, and never trained on or
    counted. After a kill the same command goes on.
    """
    from flywheel.cli.console import RunConsole
    from flywheel.config import run_lock
    from flywheel.maintenance import counterfactuals
    from flywheel.rollout.counterfactual import CounterfactualChange
    from flywheel.utils.progress import replace_listener

    given = {kind: value for kind, value in changes.items() if value is not None}
    if len(given) != 1:
        what = f"{len(given)} things are changed: {', '.join(f'--{kind}' for kind in given)}" if given else "no change"
        raise BadInput(what, where="counterfactual", fix=f"give one of {', '.join(f'--{kind}' for kind in changes)}")
    ((kind, value),) = given.items()
    asked = counterfactuals.CounterfactualRequest(
        trajectory, step, CounterfactualChange(kind, value), runs, seed, policy
    )
    with run_lock.hold_workspace(ws):
        prepared = counterfactuals.prepare_counterfactual(ws, asked)
        if as_json:
            click.echo(json.dumps(counterfactuals.run_counterfactual(ws, prepared)))
            return
        with RunConsole(Console()) as screen, replace_listener(screen):
            found = counterfactuals.run_counterfactual(ws, prepared)
    click.echo("\n".join(counterfactuals.describe_result(found)))
    echo_with_commands(f"`flywheel ui` shows them side by side: /tasks/{found['task_id']}?source=counterfactual")


@click.command(epilog="Example: flywheel model merge rl-games rl-sites merged --weights 0.6,0.4")
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--weights", metavar="W,W,...", help="A share of each folder, in their order; they sum to 1. Default: equal."
)
@click.option("--rank", type=click.IntRange(1), help="Of a merged adapter; default: the sum of all ranks, exact.")
@click.option(
    "--method",
    type=click.Choice(["linear", "task_arithmetic", "ties", "dare_linear", "dare_ties"]),
    default="linear",
    help="Of whole checkpoints; default: linear, the mean. The others take --base.",
)
@click.option(
    "--base",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Checkpoint that FOLDERS were trained from.",
)
@click.option("--scaling", type=float, default=1.0, help="Of what is added to the base; default: 1.")
@click.option("--density", type=float, default=1.0, help="Share of the changes that ties or dare keep; default: 1.")
@click.option("--seed", type=int, default=0, help="Of what dare drops; default: 0.")
def merge_command(folders: tuple[Path, ...], out: Path, weights: str | None, rank: int | None, **chosen: Any) -> None:
    """Merge FOLDERS into OUT: whole checkpoints, or adapters of one base.

    As a weighted mean of weights, or by task arithmetic, TIES or DARE.
    """
    from flywheel.training.merge_methods import MergeMethod
    from flywheel.training.model_merging import merge_checkpoints

    method = MergeMethod(chosen.pop("method"), **chosen)
    try:
        shares = list(map(float, weights.split(","))) if weights else [1 / len(folders)] * len(folders)
    except ValueError:
        raise BadInput(f"not numbers: {weights}", where="--weights", fix="for example --weights 0.6,0.4") from None
    _check_new(out)
    _tell_written(out, merge_checkpoints(folders, shares, out, rank, method) or "a checkpoint")


@click.command(epilog="Example: flywheel model merge-adapter models/iteration=003/merged /tmp/whole --dtype bfloat16")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), help="Of the weights; default: the base's.")
def merge_adapter_command(folder: Path, out: Path, dtype: str | None) -> None:
    """Write the adapter in FOLDER and its base to OUT as one whole checkpoint."""
    import torch

    from flywheel.pipeline.resource_plan import format_size
    from flywheel.policy import checkpoint
    from flywheel.policy.encoding import Encoder
    from flywheel.policy.model import load_model, save_checkpoint, stored_dtype

    checkpoint.check_checkpoint(folder)
    if not checkpoint.is_adapter(folder):
        raise BadInput("a whole checkpoint, and no adapter", where=folder, fix="use it as it is")
    _check_new(out)
    base = checkpoint.find_base_checkpoint(folder)
    kind = dtype or stored_dtype(base)
    needs = checkpoint.count_parameters(base) * getattr(torch, kind).itemsize
    if (free := shutil.disk_usage(_find_place(out)).free) < needs:
        what = f"the checkpoint takes {format_size(needs)}, {format_size(free)} are free"
        raise DiskFull(what, where=out, fix="free some space, or name a folder on another disk")
    save_checkpoint(load_model(folder, dtype=kind), Encoder.from_folder(folder), out, dtype=getattr(torch, kind))
    _tell_written(out, f"a checkpoint in {kind}")


def _check_new(out: Path) -> None:
    if out.exists():
        raise BadInput("it is there already", where=out, fix="give a folder that is not there")
    place = _find_place(out)
    if not (place.is_dir() and os.access(place, os.W_OK)):
        what = f"nothing can be made here: {place} is no folder that can be written"
        raise BadInput(what, where=out, fix="name another place")
    if place == out.absolute().parent:
        remove_unfinished(place, out.name)


def _find_place(out: Path) -> Path:
    """Return the nearest folder above `out` that is there; what is above it may be a file."""
    return next(folder for folder in out.absolute().parents if folder.exists())


def _tell_written(out: Path, what: object) -> None:
    from flywheel.policy import checkpoint

    size = sum(file.stat().st_size for file in out.iterdir()) / 2**20
    click.echo(f"{out}: {what} ({size:.1f} MiB, weights {checkpoint.checkpoint_digest(out)})")


@click.command(epilog="Example: flywheel model train-orm -w WORKSPACE --iterations 1-5 -o models/orm")
@WORKSPACE_OPTION
@click.option("--iterations", default="", metavar="N or N-M", help="Whose trajectories it learns from; default: all.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    default=Path("models/orm"),
    help="Name before the version: the first is models/orm@1.",
)
@click.option(
    "--init-from",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Checkpoint to start from; default: the merged model of the iteration before the first one, or policy.base.",
)
@click.option("--steps", type=click.IntRange(1), default=300, help="Gradient steps of SFT.")
@click.option("--rl-steps", type=click.IntRange(0), default=30, help="Gradient steps of RL.")
@click.option("--screens", type=click.IntRange(1), default=5, help="The newest screens of a trajectory that it sees.")
@click.option("--seed", type=int, default=0)
def train_orm_command(
    ws: Workspace,
    iterations: str,
    out: Path,
    init_from: Path | None,
    steps: int,
    rl_steps: int,
    screens: int,
    seed: int,
) -> None:
    """Train an outcome reward model on labelled trajectories.

    The truth is the verifiers' word, or people's where they agreed. It becomes a scorer by `routing.scorers`.
    """
    from flywheel import config
    from flywheel.policy.checkpoint import resolve_checkpoint
    from flywheel.rewards.outcome import VerdictInput
    from flywheel.training.outcome_reward import trainer

    there = ws.list_iteration_folders()
    first, last = _parse_iterations(iterations) if iterations else (min(there, default=0), max(there, default=0))
    if not set(there) & set(range(first, last + 1)):
        raise BadInput(f"there is no iteration {iterations}".rstrip(), where=ws.root, fix="run one: `flywheel run`")
    before = ws.model(first - 1, "merged")
    begin = init_from or (
        before if before.is_dir() else resolve_checkpoint(config.load_settings(ws.params).policy.base, ws.root)
    )
    click.echo(f"starts from {begin}")

    def tell(metric: dict) -> None:
        if metric["step"] % 25 == 0 or metric["step"] == metric["steps"]:
            right = f"probability of what is right {metric['probability']:.3f}"
            click.echo(f"{metric['stage']}: step {metric['step']} of {metric['steps']}, {right}")

    recipe = trainer.OrmRecipe(begin, VerdictInput(screens), steps, rl_steps, seed=seed)
    made = trainer.train_orm(ws, (first, last), out, recipe, tell)
    click.echo((made / "README.md").read_text(encoding="utf-8"))
    echo_with_commands(f"{made}: set orm.checkpoint to it; `flywheel model serve {made}` serves it as the policy's")


def _parse_iterations(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal() or int(first) > int(last or first):
        raise BadInput(f"not iterations: {text}", where="--iterations", fix="for example 1-5, or 3")
    return int(first), int(last or first)
