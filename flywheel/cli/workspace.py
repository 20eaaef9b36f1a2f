"""Make, clean, examine and configure a workspace: `init`, `clean`, `doctor`, `migrate`, `settings`."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flywheel.cli.options import JSON_OPTION, WORKSPACE_OPTION, find_workspace_here
from flywheel.config.workspace import Workspace
from flywheel.utils import yaml_text
from flywheel.utils.errors import BadInput

if TYPE_CHECKING:
    from flywheel.config.parameters import ParameterInfo, ParameterSection


# Commands for a workspace and the machine under it: init, clean, doctor, migrate.


@click.command(epilog="Example: flywheel init my-flywheel && cd my-flywheel && flywheel run")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--profile",
    default="laptop",
    show_default=True,
    help="small: one iteration in two minutes. laptop: two in ten. evening: six in an hour. overnight: of all worlds. "
    "computer: chores in a shell.",
)
def init_command(folder: Path, profile: str) -> None:
    """Make a workspace of its own, in git. Each iteration is committed and tagged there."""
    from flywheel.cli import scaffold as workspace

    ws = workspace.create_workspace(folder, profile)
    click.echo(f"made {ws.root}; next: cd {folder} && flywheel run")
    for one in workspace.list_missing_data(ws):
        click.echo(one)


@click.command(epilog="Example: flywheel clean --yes")
@WORKSPACE_OPTION
@click.option("--yes", is_flag=True, help="Do not ask.")
def clean_command(workspace: Path | None, yes: bool) -> None:
    """Remove what runs have made: data, models, history, report. The base model, recordings and settings stay."""
    from flywheel.cli import scaffold as workspaces

    ws = Workspace.find(workspace)
    found = workspaces.list_run_outputs(ws)
    if not found:
        click.echo("nothing to remove")
        return
    click.echo("\n".join(ws.relative(path) for path in found))
    if yes or click.confirm("Remove these?"):
        workspaces.remove_paths(found)


@click.command(epilog="Example: flywheel doctor --json")
@WORKSPACE_OPTION
@JSON_OPTION
def doctor_command(workspace: Path | None, as_json: bool) -> None:
    """What is installed, what is missing, what to type."""
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


@click.command(epilog="Example: flywheel migrate")
@WORKSPACE_OPTION
def migrate_command(workspace: Path | None) -> None:
    """Bring a workspace of an earlier version up to date. It may be stopped and typed again at any time."""
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


# `flywheel settings`: what parameters there are, what they mean, and what they are here.

_WIDTH = 100  # of paragraphs: longer lines are hard to read


@click.command(epilog="Example: flywheel settings rl.gae_lambda_alpha")
@click.argument("name", required=False)
@WORKSPACE_OPTION
@JSON_OPTION
@click.option(
    "--write", is_flag=True, help="Write params.yaml anew: the same values, every parameter with its description."
)
@click.option("--yes", is_flag=True, help="With --write: do not ask.")
def settings_command(name: str | None, workspace: Path | None, as_json: bool, write: bool, yes: bool) -> None:
    """Show parameters: what they are and what they mean.

    Without NAME, all of them and their values here. NAME is one of them (rl.gae_lambda_alpha) or a block (rl): its
    meaning, the values that it takes, its default. Outside a workspace the defaults are shown.

    To change one, edit params.yaml; for some iterations alone, type `flywheel run --set rl.gae_lambda_alpha=2`.
    """
    from flywheel import config
    from flywheel.config import parameters

    if write:
        if name is not None:
            raise BadInput("--write writes the whole file", where=f"NAME: {name}", fix="leave the name out")
        _rewrite_params(Workspace.find(workspace), yes)
        return
    shown = parameters.list_parameter_sections() if name is None else (parameters.find_parameter_section(name),)
    ws, values, fault = find_workspace_here(workspace), None, None
    try:
        values = config.load_settings(ws.params).model_dump(mode="json") if ws else None
    except BadInput as error:  # a description helps to mend it
        fault = error
    if as_json:
        click.echo(json.dumps([_parameter_row(one, values) for section in shown for one in section.parameters]))
    elif name is None:
        _list_parameters(shown, values, "" if ws else "no workspace here: these are the defaults")
    else:
        _explain_parameters(shown[0], values, of_block=name == shown[0].name)
    if fault:
        raise fault


def _list_parameters(sections: tuple[ParameterSection, ...], values: Mapping[str, Any] | None, note: str) -> None:
    """A line each. In a terminal what is too long is cut; what is piped is whole."""
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
    """same: what is said behind a value that is the default."""
    default = escape(yaml_text.format_yaml_inline(one.default))
    value = one.default if values is None else one.value(values)
    if value == one.default:
        return f"{default}{same}"
    return f"[yellow]{escape(yaml_text.format_yaml_inline(value))}[/yellow] (default: {default})"


def _parameter_row(one: ParameterInfo, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """value, changed: null where there is no workspace, or its file cannot be read."""
    value = None if values is None else one.value(values)
    changed = None if values is None else value != one.default
    return {**vars(one), "values": one.values, "value": value, "changed": changed}


def _rewrite_params(ws: Workspace, yes: bool) -> None:
    from flywheel import config
    from flywheel.utils.files import write_text

    text = config.dump_commented_settings(config.load_settings(ws.params))
    if text == ws.params.read_text(encoding="utf-8"):
        click.echo("params.yaml is as it would be written")
    elif yes or click.confirm("params.yaml keeps its values; comments of your own are lost. Write it?"):
        write_text(ws.params, text)
        click.echo(f"wrote {ws.params}")
