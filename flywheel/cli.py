"""The command `flywheel`. Heavy imports stand inside the commands, so that `--help` answers at once."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import click
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flywheel import yaml_text
from flywheel.errors import BadInput, FlywheelError, of_place
from flywheel.workspace import Workspace, label

_WORKSPACE = click.option(
    "--workspace", "-w", type=click.Path(path_type=Path), default=None, help="Folder; default: the current one."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="For programs.")


_UNUSABLE = {errno.EROFS, errno.EACCES, errno.EPERM}  # of files and folders: no fault of the program


class _Group(click.Group):
    """Errors become one line and an exit code: 1 failed, 2 bad input, 130 Ctrl-C."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _usage_in_one_line():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context):
        try:
            with _usage_in_one_line():
                return super().invoke(ctx)
        except FlywheelError as error:
            _fail(str(error), error.exit_code)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                _fail(f"{error.strerror} ({error.filename}); name another place", BadInput.exit_code)
            if error.errno not in _UNUSABLE:
                raise
            where = f" ({error.filename})" if error.filename else ""
            _fail(f"{error.strerror}{where}; make it writable, or work in a copy of the workspace", 1)
        except KeyboardInterrupt:
            _stderr().print(
                "[yellow]stopped[/yellow]; what was finished is kept: type the same command to go on", soft_wrap=True
            )
            sys.exit(130)


def _stderr() -> Console:
    return Console(stderr=True)


def _fail(line: str, code: int) -> NoReturn:
    _stderr().print(f"[red]flywheel:[/red] {escape(line)}", soft_wrap=True, highlight=False)
    sys.exit(code)


@contextlib.contextmanager
def _usage_in_one_line() -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:  # a group without a command: its help is the answer
        raise
    except click.UsageError as error:
        asked = f"; see {error.ctx.command_path} --help" if error.ctx else ""
        _fail(f"{error.format_message().rstrip('.')}{asked}", error.exit_code)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="flywheel")
def main() -> None:
    """A data flywheel for GUI agents: act, score, route, train, merge, evaluate, promote."""


@main.command(epilog="Example: flywheel run --iterations 2 --set rollout.samples=8")
@_WORKSPACE
@click.option("--iterations", "-n", type=click.IntRange(1), help="How many more; default: as params.yaml says.")
@click.option("--iteration", "-k", type=int, help="This one alone.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A parameter for new iterations.")
def run(workspace: Path | None, iterations: int | None, iteration: int | None, assignments: tuple[str, ...]) -> None:
    """Turn the flywheel. A run that was stopped is gone on with."""
    from flows.run import run as turn_flywheel
    from flywheel import settings
    from flywheel.console import RunConsole
    from flywheel.progress import listening
    from flywheel.report import summary

    ws = Workspace.find(workspace)
    chosen = settings.load(ws.params, _overrides(assignments))
    console = Console()
    with RunConsole(console) as screen, listening(screen):
        outcome = turn_flywheel(ws, chosen, iterations=iterations, iteration=iteration)
    for k in outcome.done_before:
        console.print(f"iteration {label(k)} is complete: nothing to do")
    if outcome.ran:
        console.print(summary.summary_table(ws))
        console.print(_next_steps(ws, ws.report_page), highlight=False, soft_wrap=True)


def _next_steps(ws: Workspace, report: Path) -> str:
    where = "" if ws.root == Path.cwd() else f" -w {ws.root}"
    return (
        f'Next: [bold]flywheel query{where} "select * from iterations"[/bold]  (the figures, in SQL)\n'
        f"      [bold]flywheel ui{where}[/bold]   (Prefect's pages and the report)\n"
        f"      [bold]flywheel run{where}[/bold]  (go on with the next iteration)\n"
        f"Report: {report}"
    )


def _overrides(assignments: tuple[str, ...]) -> dict:
    values = {}
    for text in assignments:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise BadInput(f"not NAME=VALUE: {text}", where="--set", fix="for example --set rollout.samples=8")
        try:
            values[name.strip()] = yaml_text.read(value)
        except yaml.YAMLError:
            raise BadInput(f"not a value: {value}", where=f"--set {name}", fix="numbers and words as in YAML") from None
    return values


@main.command(epilog="Example: flywheel init my-flywheel && cd my-flywheel && flywheel run")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--profile", default="laptop", show_default=True, help="laptop or small.")
def init(folder: Path, profile: str) -> None:
    """Make a workspace of its own, in git; each iteration is committed and tagged there."""
    from flywheel import init as workspace

    ws = workspace.create(folder, profile)
    Console().print(f"made {ws.root}; next: cd {folder} && flywheel run", highlight=False)


@main.command(epilog="Example: flywheel stage rollout --iteration 1    (this is what `dvc repro` types)")
@click.argument("name")
@click.option("--iteration", "-k", type=int, required=True)
@_WORKSPACE
def stage(name: str, iteration: int, workspace: Path | None) -> None:
    """Run one stage of one iteration, without Prefect, and record it in DVC."""
    from flywheel.console import RunConsole
    from flywheel.progress import listening
    from flywheel.stages.base import Context, clear_staging, run_stage
    from flywheel.store import frozen, pipeline, versioning

    ws = Workspace.find(workspace)
    chosen = pipeline.get(name)
    ctx = Context.open(ws, iteration, name)
    console = Console()
    with frozen.named(ws, iteration), RunConsole(console) as screen, listening(screen):
        ctx.report("begins")
        outcome = run_stage(chosen, ctx)
        if "DVC_STAGE" not in os.environ:  # under `dvc repro` DVC records by itself
            versioning.commit(ws, name, iteration)
        clear_staging(ctx)
        ctx.report("ended: " + ", ".join(f"{key} {value}" for key, value in outcome.summary.items()))


@main.command(epilog="Example: flywheel status --json")
@_WORKSPACE
@_JSON
def status(workspace: Path | None, as_json: bool) -> None:
    """Where the flywheel stands: iterations, what is unfinished, what changed since it was recorded."""
    from flywheel import standing
    from flywheel.report import summary

    ws = Workspace.find(workspace)
    found = standing.look(ws)
    if as_json:
        told = {
            "workspace": str(ws.root), "changed": found.changed, "iterations": found.rows, "fault": found.fault,
            "damage": [{**vars(one), "mend": one.mend} for one in found.damage],
        }  # fmt: skip
        click.echo(json.dumps(told, default=str, allow_nan=False))
        return
    console = Console()
    if not found.begun:
        console.print("no iteration yet: type [bold]flywheel run[/bold]")
        return
    if found.fault:
        console.print(f"[red]the figures cannot be shown:[/red] {escape(found.fault)}", highlight=False, soft_wrap=True)
    else:
        console.print(summary.summary_table(ws))
    for style, line in standing.lines(found):
        console.print(escape(line), style=style, highlight=False, soft_wrap=True)


@main.command(epilog='Example: flywheel query "select domain, count(*) from trajectories group by all" --format csv')
@click.argument("sql")
@_WORKSPACE
@click.option("--format", "form", type=click.Choice(["table", "csv", "json", "parquet"]), default="table")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="A file; needed for parquet.")
def query(sql: str, workspace: Path | None, form: str, output: Path | None) -> None:
    """Ask the catalog, in DuckDB's SQL."""
    from flywheel.store import catalog

    text = catalog.render(catalog.query(Workspace.find(workspace), sql), form, output)
    click.echo(text, nl=not text.endswith("\n"))


@main.command(epilog="Example: flywheel report --picture report.png")
@_WORKSPACE
@click.option("--picture", type=click.Path(path_type=Path), help="Also a PNG of the top of the page.")
def report(workspace: Path | None, picture: Path | None) -> None:
    """Write the report: one HTML page that needs nothing beside it."""
    from flywheel.report import page

    ws = Workspace.find(workspace)
    click.echo(page.build(ws))
    if picture:
        from flywheel.report.picture import report_picture

        click.echo(report_picture(ws, picture))


@main.command(epilog="Example: flywheel view t0123456789abcdef012")
@click.argument("trajectory")
@_WORKSPACE
def view(trajectory: str, workspace: Path | None) -> None:
    """Write a page that replays one trajectory: screens, actions, thoughts, score, route, lineage."""
    from flywheel.report import trajectory as pages

    click.echo(pages.view(Workspace.find(workspace), trajectory))


@main.command(epilog="Example: flywheel ui --port 4200")
@_WORKSPACE
@click.option("--port", default=4200, show_default=True, type=click.IntRange(1, 65534))
def ui(workspace: Path | None, port: int) -> None:
    """Serve Prefect's pages and the report on 127.0.0.1 until Ctrl-C."""
    from flows.ui import serve

    serve(Workspace.find(workspace), port, click.echo)


@main.command(epilog='Example: flywheel review --iteration 3 --promote --reviewer Ada --comment "sites are better"')
@click.option("--iteration", "-k", type=int, required=True)
@click.option("--promote/--keep", "promote", default=None, help="The decision.")
@click.option("--reviewer", required=True)
@click.option("--comment", default="")
@_WORKSPACE
def review(iteration: int, promote: bool | None, reviewer: str, comment: str, workspace: Path | None) -> None:
    """Approve or refuse a promotion, where promotion.rule is `review`."""
    from flywheel import run_lock
    from flywheel.evaluation import review as reviews
    from flywheel.store import dvc_lock, frozen

    ws = Workspace.find(workspace)
    if promote is None:
        raise BadInput("no decision", where="flywheel review", fix="add --promote or --keep")
    if not reviewer.strip():
        raise BadInput("the reviewer has no name", where="--reviewer", fix="give yours")
    if dvc_lock.decided(ws, iteration):
        raise BadInput(f"the promotion of iteration {label(iteration)} is decided already", where="--iteration",
                       fix="`flywheel query \"from promotions\"` shows how")  # fmt: skip
    if not ws.partition("metrics", iteration, "evaluate").is_dir():
        raise BadInput(f"iteration {iteration} is not evaluated", where="--iteration", fix="see `flywheel status`")
    rule = frozen.load(ws, iteration).promotion.rule
    if rule != "review":
        raise BadInput(
            f"nobody is asked: promotion.rule is {rule}", where=ws.relative(ws.frozen_params(iteration)),
            fix="change it there to review, and decide then",
        )  # fmt: skip
    before = reviews.read(ws, iteration)
    reviews.write(ws, iteration, promote=promote, reviewer=reviewer, comment=comment, at=datetime.now(UTC))
    if before:
        click.echo(f"this replaces the decision: {before.words}")
    then = "the run that waits for it goes on" if run_lock.held(ws) else "type `flywheel run` to go on"
    click.echo(f"kept in {ws.relative(reviews.path(ws, iteration))}; {then}")


@main.command(epilog="Example: flywheel doctor --json")
@_WORKSPACE
@_JSON
def doctor(workspace: Path | None, as_json: bool) -> None:
    """What is installed, what is missing, what to type."""
    from flywheel import doctor as examination

    if workspace and not workspace.is_dir():
        raise BadInput("no such folder", where=workspace, fix="name a workspace")
    findings = examination.examine(workspace or Path.cwd())
    if as_json:
        click.echo(json.dumps([vars(finding) for finding in findings]))
    else:
        table = Table("", "what", "found", "to mend it", box=None)
        mark = {"ok": "[green]ok[/green]", "missing": "[red]missing[/red]", "optional": "[dim]optional[/dim]"}
        for finding in findings:
            table.add_row(mark[finding.state], finding.name, escape(finding.detail), escape(finding.fix))
        for column in table.columns:
            column.overflow = "fold"  # a path that is cut cannot be typed
        Console().print(table)
    sys.exit(any(finding.state == "missing" for finding in findings))


@main.command(
    epilog="Example: flywheel bench policy --repetitions 9",
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,
)
@click.argument("name", required=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option("-h", "--help", "asked", is_flag=True, help="Show this message and exit; after NAME, its options.")
@click.pass_context
def bench(context: click.Context, name: str | None, options: tuple[str, ...], asked: bool) -> None:
    """Run a benchmark of the source folder: a JSON line a case, exit 1 where a goal is not met. No NAME: list them."""
    from flywheel import bench as benchmarks

    if asked and name is None:
        click.echo(context.get_help())
        return
    options += ("--help",) * asked
    if name is None:
        for found, what in benchmarks.names().items():
            click.echo(f"{found:<10} {what}")
        return
    sys.exit(benchmarks.run(name, options))


@main.command(epilog="Example: flywheel pretrain --out .flywheel/pretrain --processes 2")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the state, the log and base/.")
@click.option("--steps", type=click.IntRange(1), default=12_000, show_default=True, help="Gradient steps in all.")
@click.option(
    "--seeing", type=click.IntRange(0), default=7_000, show_default=True, help="The first of them: it only sees."
)
@click.option("--seed", type=int, default=7, show_default=True)
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="They share each batch.")
@click.option("--start", type=click.Path(path_type=Path), help="A checkpoint to go on from; default: from nothing.")
@click.option("--engine", type=click.Choice(["torch", "deepspeed"]), default="torch", show_default=True)
@click.option("--zero-stage", type=click.IntRange(1, 3), default=2, show_default=True, help="Of engine deepspeed.")
def pretrain(
    out: Path, steps: int, seeing: int, seed: int, processes: int, start: Path | None, engine: str, zero_stage: int
) -> None:
    """Train the small base model on rendered pages. Resumes where it was stopped; log.jsonl shows how it does."""
    import logging

    from flywheel.training.pretrain.train import OPTIMIZER, Recipe
    from flywheel.training.pretrain.train import pretrain as train

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    optimizer = OPTIMIZER.model_copy(update={"processes": processes, "engine": engine, "zero_stage": zero_stage})
    folder = train(Recipe(out, seed=seed, steps=steps, seeing=seeing, start=start, optimizer=optimizer))
    click.echo(f"the checkpoint is {folder}")


@main.command(epilog="Example: flywheel serve models/base --port 8000")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: any free one.")
@click.option("--name", help="What callers know the model by; default: the folder's name.")
@click.option("--key-variable", help="Environment variable with the key that callers must bear; default: a new one.")
@click.option("--grace", type=click.FloatRange(0), help="Seconds for what is under way at the end; default: 20.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="For example policy.batch=32.")
@_JSON
def serve(
    folder: Path, host: str, port: int, name: str, key_variable: str, grace: float, assignments: tuple, as_json: bool
) -> None:
    """Serve a checkpoint as an OpenAI-compatible server, until Ctrl-C or SIGTERM."""
    from flywheel import settings
    from flywheel.policy.serving import process

    values = _overrides(assignments)
    if strange := [name for name in values if not name.startswith("policy.")]:
        raise BadInput(f"not of the policy: {strange[0]}", where="--set", fix="for example --set policy.batch=32")
    policy = settings.parse({"policy": {name[7:]: value for name, value in values.items()}}, where="--set").policy
    key = os.environ.get(key_variable, "") if key_variable else ""
    if key_variable and not key:
        raise BadInput("the variable is empty or not set", where=f"--key-variable {key_variable}", fix="put the key in")

    def say(ready: process.Ready) -> None:
        text = f"serving {ready.model} (weights {ready.weight_version}) at {ready.url}, "
        text += f"to whoever has the key in {ready.key_file}; Ctrl-C ends it"
        click.echo(json.dumps(vars(ready) | {"pid": os.getpid()}) if as_json else text)

    process.serve(
        folder, policy, host=host, port=port, name=name or folder.resolve().name,
        key=key or secrets.token_urlsafe(24), say=say,
        grace_s=process.GRACE_S if grace is None else grace,
    )  # fmt: skip


@main.group(cls=_Group, epilog="Example: flywheel page try my-page/manifest.yaml --seed 3 --screen screen.png")
def page() -> None:
    """Third-party web pages as tasks, by a manifest alone."""


@page.command("list", epilog="Example: flywheel page list")
@_WORKSPACE
@_JSON
def list_pages(workspace: Path | None, as_json: bool) -> None:
    """The manifests that ship with flywheel, and those that the workspace's settings name."""
    from flywheel import settings
    from flywheel.sandbox import manifests, packages, programs

    found = manifests.load_all([str(manifests.THIRD_PARTY)], Path())
    if workspace or (Path.cwd() / "params.yaml").is_file():
        ws = Workspace.find(workspace)
        found |= manifests.load_all(settings.load(ws.params).synthesis.manifests, ws.root)
    rows = [
        {
            "name": one.name, "title": one.title, "domain": one.domain, "tasks": len(one.variants),
            "from": one.source, "ready": packages.ready(one) and programs.ready(one),
            "manifest": str(one.path),
        }
        for one in found.values()
    ]  # fmt: skip
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = Table("name", "what", "tasks", "from", "", box=None)
    for row in rows:
        fix = "" if row["ready"] else f"flywheel page fetch {row['name']}"
        table.add_row(row["name"], escape(row["title"]), str(row["tasks"]), escape(row["from"]), fix)
    Console().print(table)


@page.command("fetch", epilog="Example: flywheel page fetch miniwob")
@click.argument("manifest")
def fetch_page(manifest: str) -> None:
    """Fetch the packages that a MANIFEST (a file, or the name of a shipped one) takes its page or server from."""
    from flywheel.sandbox import manifests, packages, programs

    found = manifests.load(manifests.find(manifest))
    if found.server is not None:
        click.echo(f"installed into {programs.install(found)}")
        return
    folder, checksum = packages.fetch(found)
    manifests.check_start(found, folder)
    click.echo(f"fetched into {folder}\nsha256: {checksum}{'' if found.sha256 else '  (put it into the manifest)'}")


@page.command("try", epilog="Example: flywheel page try my-page/manifest.yaml --seed 3 --screen screen.png")
@click.argument("manifest")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**31 - 1))
@click.option("--variant", help="One of the manifest's; default: the first.")
@click.option("--screen", type=click.Path(path_type=Path, dir_okay=False), help="A PNG of the first screen.")
@click.option("--no-check", is_flag=True, help="Leave out the conformance suite (determinism and the rest).")
@click.option("--timeout", default=10.0, show_default=True, type=click.FloatRange(0.1), help="Seconds, for one step.")
@_JSON
def try_page(
    manifest: str, seed: int, variant: str | None, screen: Path | None, no_check: bool, timeout: float, as_json: bool
) -> None:
    """Open the page of a MANIFEST, reset it with a seed, read it, play at random, check it; say what is wrong."""
    import asyncio

    from flywheel.sandbox import manifests, trial
    from flywheel.settings import Sandbox, Settings
    from flywheel.synthesis.pages import make_task

    found = manifests.load(manifests.find(manifest))
    chosen = variant or found.variants[0]
    if chosen not in found.variants:
        raise BadInput(f"no variant {chosen}", where="--variant", fix=f"one of: {', '.join(found.variants)}")
    lines: list[tuple[str, str]] = []

    def say(what: str, told: str) -> None:
        lines.append((what, told))
        if not as_json:
            click.echo(f"{what:<18} {' '.join(told.split())}")

    task = make_task(found, chosen, seed, "eval")
    settings = Settings(sandbox=Sandbox(browsers=1, pages=2, timeout_s=timeout))
    picture = screen or Path(f"{found.name}-{chosen}-{seed}.png")
    with of_place(picture):
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.touch()
    result = asyncio.run(trial.try_page(found, task, settings, picture, say, check=not no_check))
    verdict = "it works" if result.ok else f"it does not work: {result.wrong[0]}"
    if as_json:
        click.echo(json.dumps({"ok": result.ok, "verdict": verdict, "said": lines, **vars(result)}))
    else:
        for text in (*result.wrong[1:], *result.doubtful):
            click.echo(f"{'also':<18} {text}")
        click.echo(f"{found.name}: {verdict}")
    sys.exit(not result.ok)


@main.command(epilog="Example: flywheel discard --iteration 3")
@click.option("--iteration", "-k", type=int, help="Default: the newest.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_WORKSPACE
def discard(iteration: int | None, yes: bool, workspace: Path | None) -> None:
    """Give up an iteration that is not complete: `flywheel run` begins it anew, with params.yaml."""
    from flywheel import discard as giving_up
    from flywheel import run_lock

    ws = Workspace.find(workspace)
    with run_lock.hold(ws):
        chosen = giving_up.plan(ws, iteration)
        click.echo("\n".join(giving_up.lines(ws, chosen)))
        if yes or click.confirm(f"Remove these of iteration {label(chosen.iteration)}?"):
            giving_up.carry_out(ws, chosen)
            click.echo(f"iteration {label(chosen.iteration)} is given up; `flywheel run` begins it anew")


@main.command(epilog="Example: flywheel clean --yes")
@_WORKSPACE
@click.option("--yes", is_flag=True, help="Do not ask.")
def clean(workspace: Path | None, yes: bool) -> None:
    """Remove all that runs have made in a workspace: data, models of iterations, history, report."""
    from flywheel import init as workspaces

    ws = Workspace.find(workspace)
    found = workspaces.made_by_runs(ws)
    if not found:
        click.echo("nothing to remove")
        return
    click.echo("\n".join(ws.relative(path) for path in found))
    if yes or click.confirm("Remove these?"):
        workspaces.remove(found)
