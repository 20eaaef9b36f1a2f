"""Pretrain, serve and benchmark models."""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path

import click

from flywheel.cli.options import JSON_OPTION, parse_overrides
from flywheel.utils.errors import BadInput


@click.command(epilog="Example: flywheel pretrain --out .flywheel/pretrain --processes 2")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the state, the log and base/.")
@click.option("--steps", type=click.IntRange(1), default=12_000, show_default=True, help="Gradient steps in all.")
@click.option(
    "--seeing", type=click.IntRange(0), default=7_000, show_default=True, help="The first of them: it only sees."
)
@click.option("--copying", is_flag=True, help="It learns to copy out of texts, and no more to see; with --start.")
@click.option("--seed", type=int, default=7, show_default=True)
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="They share each batch.")
@click.option("--start", type=click.Path(path_type=Path), help="A checkpoint to go on from; default: from nothing.")
@click.option("--engine", type=click.Choice(["torch", "deepspeed"]), default="torch", show_default=True)
@click.option("--zero-stage", type=click.IntRange(1, 3), default=2, show_default=True, help="Of engine deepspeed.")
def pretrain_command(
    out: Path,
    steps: int,
    seeing: int,
    copying: bool,
    seed: int,
    processes: int,
    start: Path | None,
    engine: str,
    zero_stage: int,
) -> None:
    """Train the small base model on rendered pages. Resumes where it was stopped; log.jsonl shows how it does."""
    import logging

    from flywheel.training.pretrain.pretrainer import OPTIMIZER, Recipe
    from flywheel.training.pretrain.pretrainer import run_pretraining as train

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    optimizer = OPTIMIZER.model_copy(update={"processes": processes, "engine": engine, "zero_stage": zero_stage})
    recipe = Recipe(out, seed=seed, steps=steps, seeing=seeing, copying=copying, start=start, optimizer=optimizer)
    folder = train(recipe)
    click.echo(f"the checkpoint is {folder}")


@click.command(epilog="Example: flywheel serve models/base --port 8000")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: any free one.")
@click.option("--name", help="What callers know the model by; default: the folder's name.")
@click.option("--key-variable", help="Environment variable with the key that callers must bear; default: a new one.")
@click.option("--grace", type=click.FloatRange(0), help="Seconds for what is under way at the end; default: 20.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="For example policy.max_num_seqs=32.")
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
    policy = config.parse_settings(
        {"policy": {name[7:]: value for name, value in values.items()}}, where="--set"
    ).policy
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


@click.command(
    epilog="Example: flywheel bench policy --repetitions 9",
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,
)
@click.argument("name", required=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option("-h", "--help", "asked", is_flag=True, help="Show this message and exit; after NAME, its options.")
@click.pass_context
def bench_command(context: click.Context, name: str | None, options: tuple[str, ...], asked: bool) -> None:
    """Run a benchmark of the source folder. A JSON line a case, exit 1 where a goal is not met. No NAME: list them."""
    from flywheel.cli import bench as benchmarks

    if asked and name is None:
        click.echo(context.get_help())
        return
    options += ("--help",) * asked
    if name is None:
        for found, what in benchmarks.list_benchmarks().items():
            click.echo(f"{found:<10} {what}")
        return
    sys.exit(benchmarks.run_benchmark(name, options))
