"""Commands for a flywheel that nobody watches: up, down."""

from __future__ import annotations

from pathlib import Path

import click

from flywheel.commands.options import WORKSPACE
from flywheel.errors import BadInput
from flywheel.workspace import Workspace


@click.command(epilog="Example: flywheel up      (schedules and limits: `flywheel settings operations`)")
@WORKSPACE
@click.option("--port", default=4200, show_default=True, type=click.IntRange(1, 65533))
@click.option("--foreground", is_flag=True, help="Stay in this terminal, as a service manager wants it.")
def up(workspace: Path | None, port: int, foreground: bool) -> None:
    """Run the flywheel without a person: on schedules, or when new data are there. Server, worker and deployments."""
    from flows import keeper
    from flywheel import secret, settings
    from flywheel.progress import listening

    ws = Workspace.find(workspace)
    settings.load(ws.params)
    if foreground:
        with listening(lambda stage, line: click.echo(f"{stage}: {line}")):
            keeper.keep(ws, port)
        return
    found = keeper.up(ws, port)
    click.echo(f"Prefect:  {found['prefect']}")
    click.echo(f"Report:   {found['report']}")
    click.echo(f"Explorer: {found['explorer']}")
    click.echo(
        f"Log in:   `cat {secret.file(ws.state)}` prints USER:PASSWORD; Prefect's page and the explorer's want the"
    )
    click.echo("          whole line")
    click.echo(f"Log:      {ws.state / 'up.log'}")
    click.echo("`flywheel down` ends it; `flywheel settings operations` says what it does and when.")


@click.command(epilog="Example: flywheel down")
@WORKSPACE
def down(workspace: Path | None) -> None:
    """End what `flywheel up` started, and the run at work: what it had finished is kept."""
    from flows import keeper

    ws = Workspace.find(workspace)
    if not keeper.down(ws):
        raise BadInput("nothing is up here", where=ws.root, fix="`flywheel up` starts it")
    click.echo("it is down; `flywheel up` goes on where it was")
