"""List the tasks of public benchmarks, score what their harnesses recorded, and play tasks: `env benchmark ...`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from flywheel.cli.options import JSON_OPTION
from flywheel.utils.errors import BadInput

_PLACE = click.Path(exists=True, path_type=Path)
_PYTHON_OPTION = click.option(
    "--python",
    type=_PLACE,
    help="Python whose packages Terminal-Bench's tasks get (an environment's bin/python); default: flywheel's own.",
)


@click.command("list", epilog="Example: flywheel env benchmark list")
@JSON_OPTION
def list_command(as_json: bool) -> None:
    """List the benchmarks: where their files are, what their points count, what was run for real here."""
    from flywheel.evaluation.benchmarks.catalogue import BENCHMARKS

    rows = [
        {"name": one.name, "title": one.title, "source": one.source, "space": one.space, "ran": one.ran}
        for one in BENCHMARKS.values()
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = Table(Column("name", no_wrap=True), "files", "points", "run for real", box=None)
    for row in rows:
        table.add_row(*(escape(row[name]) for name in ("name", "source", "space", "ran")))
    Console().print(table)


@click.command("tasks", epilog="Example: flywheel env benchmark tasks terminal-bench terminal-bench-2")
@click.argument("name")
@click.argument("folder", type=_PLACE)
@_PYTHON_OPTION
@JSON_OPTION
def tasks_command(name: str, folder: Path, python: Path | None, as_json: bool) -> None:
    """List the tasks of the benchmark NAME in FOLDER: which can be played on this machine, or why not."""
    from flywheel.evaluation.benchmarks.benchmark import RefusedTask

    rows: list[dict[str, Any]] = []
    for task in _choose(name, python).load_tasks(folder):
        if isinstance(task, RefusedTask):
            rows.append({"task": str(task.path), "category": "", "loaded": False, "needs": task.why})
        else:
            rows.append({"task": task.id, "category": task.category, "loaded": True, "needs": task.unplayable})
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = Table(Column("task", no_wrap=True), "category", "", box=None)
    for row in rows:
        fault = escape(row["needs"]) if row["loaded"] else f"[red]cannot be read: {escape(row['needs'])}[/red]"
        table.add_row(escape(row["task"]), escape(row["category"]), fault or "[green]can be played[/green]")
    loaded = [row for row in rows if row["loaded"]]
    reasons = Counter(row["needs"].partition(":")[0] for row in loaded if row["needs"])
    by_reason = Table("tasks", "because", box=None)
    for reason, count in reasons.most_common():
        by_reason.add_row(str(count), escape(reason))
    console = Console()
    console.print(table, "", by_reason)
    playable = sum(not row["needs"] for row in loaded)
    console.print(f"{len(loaded)} of {len(rows)} tasks are read; {playable} can be played here")


@click.command("score", epilog="Example: flywheel env benchmark score osworld results -o osworld.parquet")
@click.argument("name")
@click.argument("folder", type=_PLACE)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="A Parquet file that takes the results too.")
@JSON_OPTION
def score_benchmark_command(name: str, folder: Path, out: Path | None, as_json: bool) -> None:
    """Score what the harness of the benchmark NAME recorded in FOLDER, or a Parquet file of results.

    `official` is by the benchmark's own rule; `mean` leaves out faults: what failed in the environment, not the agent.
    """
    from flywheel.evaluation.benchmarks.catalogue import choose_benchmark
    from flywheel.evaluation.benchmarks.result_table import ResultTable

    adapter = choose_benchmark(name)
    results = ResultTable(folder, name).read() if folder.is_file() else adapter.read_results(folder)
    if out:
        ResultTable(out, name).add(results)
    _print_scores(adapter, results, as_json)


@click.command("play", epilog="Example: flywheel env benchmark play terminal-bench-2 --agent oracle -o oracle.parquet")
@click.argument("folder", type=_PLACE)
@click.option("--agent", type=click.Choice(["oracle", "nop"]), default="oracle", help="Reference solution, or nothing.")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="Parquet file of results.")
@click.option("--task", "tasks", multiple=True, metavar="ID", help="This task; may be repeated. Default: all.")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1), help="Episodes of each task.")
@click.option("--seconds", default=0.0, type=click.FloatRange(0), help="Most of a phase; default: what a task says.")
@click.option("--memory", default=4096, show_default=True, type=click.IntRange(64), help="MiB of a task's sandbox.")
@_PYTHON_OPTION
@JSON_OPTION
def play_benchmark_command(
    folder: Path,
    agent: str,
    out: Path,
    tasks: tuple[str, ...],
    seeds: int,
    seconds: float,
    memory: int,
    python: Path | None,
    as_json: bool,
) -> None:
    """Play tasks of Terminal-Bench in FOLDER, by reference solution or by nothing, judged by their own tests.

    Tasks that cannot be played here are left out, and told. An episode that has a score in the results is not played
    again; one that ended in a fault is.
    """
    from flywheel.evaluation.benchmarks import container_recipe, terminal_bench, terminal_bench_machine
    from flywheel.evaluation.benchmarks.benchmark import BenchmarkTask
    from flywheel.evaluation.benchmarks.result_table import ResultTable

    installed = container_recipe.list_installed_packages(python)
    adapter = terminal_bench.TerminalBench(installed)
    loaded = {task.id: task for task in adapter.load_tasks(folder) if isinstance(task, BenchmarkTask)}
    if unknown := [task for task in tasks if task not in loaded]:
        raise BadInput(f"no task {unknown[0]!r}", where=folder, fix="see `flywheel env benchmark tasks terminal-bench`")
    chosen = {}
    for task in tasks or loaded:
        folder_of_task = terminal_bench.read_task_folder(loaded[task].path)
        why = loaded[task].unplayable
        if agent == "oracle" and not why:
            why = terminal_bench.explain_unsolvable(folder_of_task, installed)
        if why:
            click.echo(f"{task}: left out: {why}", err=True)
        else:
            chosen[task] = folder_of_task
    if not chosen:
        raise BadInput("no task can be played here", where=folder, fix="the reasons are above")
    table = ResultTable(out, terminal_bench.TerminalBench.name)
    limits = terminal_bench_machine.SandboxLimits(memory_mb=memory, most_s=seconds)
    wanted = [(task, seed, 0) for task in chosen for seed in range(seeds)]
    for task, seed, _ in table.list_missing(wanted):
        agent_of_task = terminal_bench_machine.AGENTS[agent]
        result = terminal_bench_machine.play_task(
            chosen[task], agent_of_task, installed, name=task, seed=seed, limits=limits
        )
        table.add([result])
        told = f"fault: {result.fault}" if result.fault else f"{result.score:g}"
        click.echo(f"{task} {seed}: {told} ({result.seconds:.0f} s)", err=True)
    asked = set(wanted)
    _print_scores(adapter, [one for one in table.read() if one.key in asked], as_json)


def _choose(name: str, python: Path | None) -> Any:
    from flywheel.evaluation.benchmarks import container_recipe, terminal_bench
    from flywheel.evaluation.benchmarks.catalogue import choose_benchmark

    adapter = choose_benchmark(name)
    if python is None:
        return adapter
    if not isinstance(adapter, terminal_bench.TerminalBench):
        raise BadInput(f"{adapter.title}'s tasks get no Python", where="--python", fix="leave it out")
    return terminal_bench.TerminalBench(container_recipe.list_installed_packages(python))


def _print_scores(adapter: Any, results: list[Any], as_json: bool) -> None:
    from flywheel.evaluation.benchmarks.benchmark import mask_faults

    official, masked = adapter.score_results(results), mask_faults(results)
    if as_json:
        told = {"benchmark": adapter.name, "official": official.score, "figures": dict(official.figures)}
        told |= {"mean": masked.mean, "tasks": masked.tasks, "episodes": masked.episodes, "faults": masked.faults}
        told |= {"interval": [masked.low, masked.high] if masked.episodes else None}
        click.echo(json.dumps(told))
        return
    figures = Table(Column("figure", no_wrap=True), Column("value", justify="right"), box=None)
    for name, value in official.figures.items():
        figures.add_row(escape(name), f"{value:.4g}")
    console = Console()
    console.print(figures, "")
    console.print(f"official: {official.score:.4g}")
    mean = (
        "no episode has a score" if masked.mean is None else f"{masked.mean:.4g} [{masked.low:.3g}, {masked.high:.3g}]"
    )
    episodes = f"{masked.episodes} episodes of {masked.tasks} tasks; {masked.faults} faults left out"
    console.print(escape(f"mean without faults: {mean} ({episodes})"))
