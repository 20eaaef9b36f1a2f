"""Serve the page on which people accept or override the newest model's steps: `annotate`."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import click

from flywheel.cli.options import WORKSPACE_OPTION
from flywheel.config.workspace import Workspace


@click.command(epilog="Example: flywheel annotate --annotator anna --domain sites")
@WORKSPACE_OPTION
@click.option("--port", default=None, type=click.IntRange(0, 65535), show_default=False,
              help="0: a free one.  [default: as the last time here]")  # fmt: skip
@click.option(
    "--annotator", default="", show_default=False, help="Your name, as it is stored; each page may give another."
)
@click.option("--domain", default="", show_default=False, help="Take tasks of this one of synthesis.domains alone.")
@click.option("--model", default="", show_default=False,
              help="A checkpoint's folder.  [default: the newest promoted model]")  # fmt: skip
def annotate_command(ws: Workspace, port: int | None, annotator: str, domain: str, model: str) -> None:
    """Annotate the newest model's own rollouts in a page, until Ctrl-C.

    At each step the model proposes; you accept, or do something better. What is finished goes to the next iteration.
    """
    from flywheel import config
    from flywheel.envs.registry import load_external_suites
    from flywheel.store.labels import normalise_reviewer
    from flywheel.utils.processes import run_until_sigterm

    if annotator:
        normalise_reviewer(annotator)  # refused here, and not in the page
    settings = config.load_settings(ws.params)
    load_external_suites(settings, ws.root)
    model = str(Path(model).resolve()) if model and Path(model).exists() else model
    run_until_sigterm(_serve(ws, settings, port, annotator, domain, model))


async def _serve(ws: Workspace, settings, port: int | None, annotator: str, domain: str, model: str) -> None:
    from flywheel.ui.annotate.desk import open_desk
    from flywheel.ui.annotate.server import bind_annotation_port, serve_annotation
    from flywheel.utils import credentials

    listener, note = bind_annotation_port(ws, port)  # first: a port that is taken is refused before anything opens
    with contextlib.closing(listener):
        for line in filter(None, (note, "opening the newest model and the environments")):
            click.echo(line, err=True)
        async with open_desk(ws, settings, domain, model) as desk:
            secret = credentials.workspace_credentials(ws.state)
            async with serve_annotation(desk, secret, listener, annotator) as (url, login):
                click.echo(f"annotate: {url}/login?key={login.key()}")
                await asyncio.Event().wait()
