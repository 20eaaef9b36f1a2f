"""`flywheel settings`: what parameters there are, what they mean, and what they are here."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape

from flywheel import yaml_text
from flywheel.commands.options import JSON, WORKSPACE, workspace_here
from flywheel.errors import BadInput
from flywheel.workspace import Workspace

if TYPE_CHECKING:
    from flywheel.settings.parameters import Parameter, Section

_WIDTH = 100  # of paragraphs: longer lines are hard to read


@click.command(epilog="Example: flywheel settings rl.alpha")
@click.argument("name", required=False)
@WORKSPACE
@JSON
@click.option(
    "--write", is_flag=True, help="Write params.yaml anew: the same values, every parameter with its description."
)
@click.option("--yes", is_flag=True, help="With --write: do not ask.")
def settings(name: str | None, workspace: Path | None, as_json: bool, write: bool, yes: bool) -> None:
    """Show parameters: what they are and what they mean.

    Without NAME, all of them and their values here. NAME is one of them (rl.alpha) or a block (rl): its meaning, the
    values that it takes, its default. Outside a workspace the defaults are shown.

    To change one, edit params.yaml; for some iterations alone, type `flywheel run --set rl.alpha=2`.
    """
    from flywheel import settings as config
    from flywheel.settings import parameters

    if write:
        if name is not None:
            raise BadInput("--write writes the whole file", where=f"NAME: {name}", fix="leave the name out")
        _write(Workspace.find(workspace), yes)
        return
    shown = parameters.sections() if name is None else (parameters.find(name),)
    ws, values, fault = workspace_here(workspace), None, None
    try:
        values = config.load(ws.params).model_dump(mode="json") if ws else None
    except BadInput as error:  # a description helps to mend it
        fault = error
    if as_json:
        click.echo(json.dumps([_row(one, values) for section in shown for one in section.parameters]))
    elif name is None:
        _list(shown, values, "" if ws else "no workspace here: these are the defaults")
    else:
        _explain(shown[0], values, of_block=name == shown[0].name)
    if fault:
        raise fault


def _list(sections: tuple[Section, ...], values: Mapping[str, Any] | None, note: str) -> None:
    """A line each. In a terminal what is too long is cut; what is piped is whole."""
    console = Console(highlight=False)
    form = {"no_wrap": True, "overflow": "ellipsis"} if console.is_terminal else {"soft_wrap": True}
    if note:
        console.print(note, style="dim")
    for section in sections:
        if section.name:
            console.print(f"\n[bold]{section.name}[/bold]  [dim]{escape(section.description)}[/dim]", **form)
        for one in section.parameters:
            console.print(f"{one.name:<34}{_value(one, values)}", **form)


def _explain(section: Section, values: Mapping[str, Any] | None, *, of_block: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)

    def paragraph(text: str, indent: str) -> str:
        width = min(console.width, _WIDTH)
        return escape(textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent))

    if of_block:
        console.print(paragraph(f"{section.name}: {section.description}", "") + "\n")
    for one in section.parameters:
        console.print(f"[bold]{one.name}[/bold]: {_value(one, values, ' (the default)')}")
        console.print(paragraph(one.description, "    "))
        console.print(paragraph(f"{one.values[0].upper()}{one.values[1:]}.", "    "), style="dim")


def _value(one: Parameter, values: Mapping[str, Any] | None, same: str = "") -> str:
    """same: what is said behind a value that is the default."""
    default = escape(yaml_text.one_line(one.default))
    value = one.default if values is None else one.value(values)
    if value == one.default:
        return f"{default}{same}"
    return f"[yellow]{escape(yaml_text.one_line(value))}[/yellow] (default: {default})"


def _row(one: Parameter, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """value, changed: null where there is no workspace, or its file cannot be read."""
    value = None if values is None else one.value(values)
    changed = None if values is None else value != one.default
    return {**vars(one), "values": one.values, "value": value, "changed": changed}


def _write(ws: Workspace, yes: bool) -> None:
    from flywheel import settings as config
    from flywheel.store import partitions

    text = config.commented(config.load(ws.params))
    if text == ws.params.read_text(encoding="utf-8"):
        click.echo("params.yaml is as it would be written")
    elif yes or click.confirm("params.yaml keeps its values; comments of your own are lost. Write it?"):
        partitions.write_text(ws.params, text)
        click.echo(f"wrote {ws.params}")
