"""Create, configure, check and maintain a workspace: `init`, `settings`, `doctor`, `workspace ...`."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flywheel.cli.command_names import echo_with_commands, name_command
from flywheel.cli.options import FOLDER_OPTION, JSON_OPTION, WORKSPACE_OPTION, find_workspace_here
from flywheel.config.workspace import Workspace
from flywheel.utils import yaml_text
from flywheel.utils.errors import BadInput

if TYPE_CHECKING:
    from flywheel.config.params_file import ParameterInfo, ParameterSection


_MIB = 2**20


@click.command(epilog="Example: flywheel init my-flywheel && cd my-flywheel && flywheel run")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--profile",
    default="laptop",
    help="small: one iteration in 2 minutes. laptop: two in 10. evening: six in an hour. overnight: all suites. "
    "computer: chores in a shell.",
)
def init_command(folder: Path, profile: str) -> None:
    """Create a workspace in a new folder, with git. Each iteration is committed and tagged there."""
    from flywheel.cli import scaffold as workspace

    ws = workspace.create_workspace(folder, profile)
    click.echo(f"made {ws.root}; next: cd {folder} && {name_command('flywheel', anywhere=True)} run")
    for one in workspace.list_missing_data(ws):
        click.echo(one)


@click.command(epilog="Example: flywheel workspace reset --yes")
@WORKSPACE_OPTION
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset_command(ws: Workspace, yes: bool) -> None:
    """Remove all that runs have made: data, models, history, report. The base model, recordings and settings stay."""
    from flywheel.cli import scaffold as workspaces

    found = workspaces.list_run_outputs(ws)
    if not found:
        click.echo("nothing to remove")
        return
    click.echo("\n".join(ws.relative(path) for path in found))
    if yes or click.confirm("Remove these?"):
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@click.command(epilog="Example: flywheel doctor --json")
@FOLDER_OPTION
@JSON_OPTION
def doctor_command(workspace: Path | None, as_json: bool) -> None:
    """Check the installation; print how to get what is missing."""
    from flywheel.maintenance import doctor as examination

    if workspace and not workspace.is_dir():
        raise BadInput("no such folder", where=workspace, fix="name a workspace")
    findings = examination.diagnose_installation(workspace or Path.cwd())
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


@click.command(epilog="Example: flywheel workspace migrate")
@FOLDER_OPTION
def migrate_command(workspace: Path | None) -> None:
    """Bring a workspace of an earlier version up to date. If it is stopped, type it again."""
    from flywheel.maintenance import migrate

    ws, changed = Workspace.find(workspace, any_format=True), False
    for line in migrate.migrate_workspace(ws):
        click.echo(line)
        changed = True
    click.echo(
        "up to date; `flywheel settings --write` writes the comments of params.yaml anew"
        if changed
        else "nothing to do: the workspace is up to date"
    )


_WIDTH = 100  # of paragraphs: longer lines are hard to read


@click.command(epilog="Example: flywheel settings rl.gae_lambda_alpha")
@click.argument("name", required=False)
@FOLDER_OPTION
@JSON_OPTION
@click.option(
    "--write", is_flag=True, help="Write params.yaml anew: the same values, every parameter with its description."
)
@click.option("--yes", is_flag=True, help="With --write: do not ask.")
def settings_command(name: str | None, workspace: Path | None, as_json: bool, write: bool, yes: bool) -> None:
    """List the parameters, or explain one.

    Without NAME, all of them and their values here. NAME is one of them (rl.gae_lambda_alpha) or a block (rl): its
    meaning, the values that it takes, its default. Outside a workspace the defaults are shown.

    To change one, edit params.yaml; for some iterations alone, type `flywheel run --set rl.gae_lambda_alpha=2`.
    """
    from flywheel import config
    from flywheel.config import params_file

    if write:
        if name is not None:
            raise BadInput("--write writes the whole file", where=f"NAME: {name}", fix="leave the name out")
        _rewrite_params(Workspace.find(workspace), yes)
        return
    shown = params_file.list_parameter_sections() if name is None else (params_file.find_parameter_section(name),)
    ws, values, fault = find_workspace_here(workspace), None, None
    try:
        values = config.load_settings(ws.params).model_dump(mode="json") if ws else None
    except BadInput as error:  # shown after the description, which helps to correct it
        fault = error
    if as_json:  # value, changed: null where there is no workspace, or its file cannot be read
        told = []
        for one in (one for section in shown for one in section.parameters):
            value = None if values is None else one.value(values)
            changed = None if values is None else value != one.default
            told.append({**vars(one), "values": one.values, "value": value, "changed": changed})
        click.echo(json.dumps(told))
    elif name is None:
        _list_parameters(shown, values, "" if ws else "no workspace here: these are the defaults")
    else:
        _explain_parameters(shown[0], values, of_block=name == shown[0].name)
    if fault:
        raise fault


def _list_parameters(sections: tuple[ParameterSection, ...], values: Mapping[str, Any] | None, note: str) -> None:
    """Print a line for each parameter. In a terminal long lines are cut; what is piped is whole."""
    console = Console(highlight=False)
    form = {"no_wrap": True, "overflow": "ellipsis"} if console.is_terminal else {"soft_wrap": True}
    if note:
        console.print(note, style="dim")
    for section in sections:
        if section.name:
            console.print(f"\n[bold]{section.name}[/bold]  [dim]{escape(section.description)}[/dim]", **form)
        for one in section.parameters:
            console.print(f"{one.name:<40}{_format_value(one, values)}", **form)


def _explain_parameters(section: ParameterSection, values: Mapping[str, Any] | None, *, of_block: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)

    def paragraph(text: str, indent: str) -> str:
        width = min(console.width, _WIDTH)
        return escape(textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent))

    if of_block:
        console.print(paragraph(f"{section.name}: {section.description}", "") + "\n")
    for one in section.parameters:
        console.print(f"[bold]{one.name}[/bold]: {_format_value(one, values, ' (the default)')}")
        console.print(paragraph(one.description, "    "))
        console.print(paragraph(f"{one.values[0].upper()}{one.values[1:]}.", "    "), style="dim")


def _format_value(one: ParameterInfo, values: Mapping[str, Any] | None, same: str = "") -> str:
    """Format a parameter's value. same: text that follows a value that is the default."""
    default = escape(yaml_text.format_yaml_inline(one.default))
    value = one.default if values is None else one.value(values)
    if value == one.default:
        return f"{default}{same}"
    return f"[yellow]{escape(yaml_text.format_yaml_inline(value))}[/yellow] (default: {default})"


def _rewrite_params(ws: Workspace, yes: bool) -> None:
    from flywheel import config
    from flywheel.utils.files import write_text

    text = config.dump_commented_settings(config.load_settings(ws.params))
    if text == ws.params.read_text(encoding="utf-8"):
        click.echo("params.yaml is as it would be written")
    elif yes or click.confirm("params.yaml keeps its values; comments of your own are lost. Write it?"):
        write_text(ws.params, text)
        click.echo(f"wrote {ws.params}")


@click.command(epilog="Example: flywheel workspace up      (schedules and limits: `flywheel settings operations`)")
@WORKSPACE_OPTION
@click.option(
    "--port",
    default=4200,
    type=click.IntRange(1, 65533),
    help="Prefect's; the next two are the report's and the explorer's.",
)
@click.option("--foreground", is_flag=True, help="Stay in this terminal, as systemd wants it.")
def up_command(ws: Workspace, port: int, foreground: bool) -> None:
    """Run iterations unattended: on schedules, or when new data arrive. It starts a server and a worker."""
    from flows.ops import supervisor
    from flywheel import config
    from flywheel.utils import credentials
    from flywheel.utils.progress import replace_listener

    config.load_settings(ws.params)
    if foreground:
        with replace_listener(lambda stage, line: click.echo(f"{stage}: {line}")):
            supervisor.supervise(ws, port)
        return
    found = supervisor.start_supervisor(ws, port)
    click.echo(f"Prefect:  {found['prefect']}")
    click.echo(f"Report:   {found['report']}")
    click.echo(f"Explorer: {found['explorer']}")
    click.echo(
        f"Log in:   `cat {credentials.credentials_path(ws.state)}` prints USER:PASSWORD; "
        "Prefect's page and the explorer's want the"
    )
    click.echo("          whole line")
    click.echo(f"Log:      {ws.state / 'up.log'}")
    echo_with_commands("`flywheel workspace down` ends it; `flywheel settings operations` says what it does and when.")


@click.command(epilog="Example: flywheel workspace down")
@WORKSPACE_OPTION
def down_command(ws: Workspace) -> None:
    """Stop what `workspace up` started, and the iteration that is running. What it has finished is kept."""
    from flows.ops import supervisor

    if not supervisor.stop_supervisor(ws):
        raise BadInput("nothing is up here", where=ws.root, fix="`flywheel workspace up` starts it")
    echo_with_commands("it is down; `flywheel workspace up` goes on where it was")


@click.command(epilog="Example: flywheel workspace verify 3")
@click.argument("iteration", type=click.IntRange(1), required=False)
@WORKSPACE_OPTION
def verify_command(iteration: int | None, ws: Workspace) -> None:
    """Check every file against its recorded hash. Print a line for each fault; exit code 1 where there is one."""
    from flywheel.maintenance import verify as verification

    found = 0
    for line in verification.find_faults(ws, None if iteration is None else [iteration]):
        found += 1
        click.echo(line)
    if found:
        sys.exit(1)
    click.echo("every file is as it was recorded")


@click.command(epilog="Example: flywheel workspace gc --keep 5 --write --cache")
@click.option("--keep", type=click.IntRange(1), help="Keep the newest N complete iterations whole.")
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(0),
    metavar="DAYS",
    help="Keep iterations whole that ended in the last DAYS.",
)
@click.option("--training-data", is_flag=True, help="Remove their training data too.")
@click.option("--cache", is_flag=True, help="Remove files of DVC's cache that no iteration names, here or set aside.")
@click.option("--write", is_flag=True, help="Remove the files; without it they are only listed.")
@WORKSPACE_OPTION
def gc_command(
    keep: int | None, days: float | None, training_data: bool, cache: bool, write: bool, ws: Workspace
) -> None:
    """List files of past iterations that nothing needs; --write removes them. Weights of promoted models and training
    data stay.

    Intermediate checkpoints go, and the steps, screens and events of evaluation and RL. DVC's cache and the remote keep
    them, unless --cache is given and there is no remote.
    """
    from flywheel.config import run_lock
    from flywheel.maintenance import garbage_collection

    with run_lock.hold_workspace(ws):
        older = None if days is None else timedelta(days=days)
        chosen = garbage_collection.plan_prune(ws, keep=keep, older=older, training_data=training_data)
        pruned = [one.path for one in chosen]
        garbage = garbage_collection.find_unreferenced_cache_files(ws, pruned) if cache else []
        for one in chosen:
            click.echo(f"{one.path}  {one.bytes / _MIB:.1f} MiB")
        verb = "removed" if write else "would go"
        click.echo(f"{sum(one.bytes for one in chosen) / _MIB:.1f} MiB of data and models {verb}")
        if write:
            garbage_collection.prune_outputs(ws, chosen)
        if cache:
            click.echo(f"{sum(size for _, size in garbage) / _MIB:.1f} MiB of DVC's cache {verb}")
            for path, _ in garbage if write else ():
                path.unlink()
    if not write and (chosen or cache):
        click.echo("nothing was removed: add --write")
