"""`flywheel sandbox`: environments on many machines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click

from flywheel.commands.options import JSON, WORKSPACE, workspace_here
from flywheel.errors import BadInput, FlywheelError

_PORT, _NODE_PORT = 4300, 4301
_TOKEN = "FLYWHEEL_SANDBOX_TOKEN"
_MANAGER = click.option(
    "--manager", default=f"http://127.0.0.1:{_PORT}", show_default=True, help="The manager's address."
)


@click.group(epilog="Example: FLYWHEEL_SANDBOX_TOKEN=... flywheel sandbox serve --state sandbox.db")
def sandbox() -> None:
    """Environments on many machines: a manager that leases them, and nodes that have them. FLYWHEEL_SANDBOX_TOKEN holds
    the token that all of them share."""


@sandbox.command(epilog="Example: flywheel sandbox serve --state sandbox.db --per-user 200")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=_PORT, show_default=True, type=click.IntRange(1, 65535))
@click.option("--state", default="sandbox.db", show_default=True, type=click.Path(dir_okay=False, path_type=Path),
              help="Its file: a manager that was killed goes on from it.")  # fmt: skip
@click.option(
    "--lease", default=3600.0, show_default=True, type=click.FloatRange(1), help="Seconds a session may live."
)
@click.option("--silent", default=60.0, show_default=True, type=click.FloatRange(1),
              help="Seconds without a word from who plays after which a session is reclaimed.")  # fmt: skip
@click.option("--per-user", default=0, show_default=True, type=click.IntRange(0), help="Sessions at once; 0: no limit.")
def serve(host: str, port: int, state: Path, lease: float, silent: float, per_user: int) -> None:
    """Be the manager: nodes register here, who plays leases here."""
    from flywheel.manager.ledger import Ledger, Terms
    from flywheel.manager.server import application
    from flywheel.manager.serving import listening

    ledger = Ledger(state, Terms(lease_s=lease, silent_s=silent, per_user=per_user))
    made = application(ledger, _token())

    async def run() -> None:
        async with listening(made, host, port) as address:
            known = f"{len(ledger.nodes)} nodes, {len(ledger.sessions)} sessions"
            click.echo(f"manager at {address}: {known}", err=True)
            await asyncio.Event().wait()

    _serve(run())


@sandbox.command(epilog="Example: flywheel sandbox node --manager http://HOST:4300 --kind browser --kind terminal")
@WORKSPACE
@_MANAGER
@click.option(
    "--kind", "kinds", multiple=True, help="A kind of environment to have; it may be given again. [default: browser]"
)
@click.option("--name", default="", help="Its name at the manager. [default: the machine's]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where it listens.")
@click.option("--port", default=_NODE_PORT, show_default=True, type=click.IntRange(1, 65535))
@click.option("--address", default="", help="Where who plays finds it. [default: http://HOST:PORT]")
@click.option("--film-mb", default=0, show_default=True, type=click.IntRange(0, 4096),
              help="MB of memory for the steps and pictures of each session, for who watches; 0: none.")  # fmt: skip
def node(
    workspace: Path | None,
    manager: str,
    kinds: tuple[str, ...],
    name: str,
    host: str,
    port: int,
    address: str,
    film_mb: int,
) -> None:
    """Have environments for others, by the settings of the workspace; it ends when it was drained."""
    from flywheel import settings as config
    from flywheel.environments import kind as environment_kinds
    from flywheel.manager import node as nodes
    from flywheel.manager.serving import play

    ws = workspace_here(workspace)
    chosen, wanted = config.load(ws.params) if ws else config.Settings(), kinds or ("browser",)
    environment_kinds.check(chosen, wanted)
    token, called = _token(), name or f"{socket.gethostname()}-{port}"

    def ready(at: str) -> None:
        click.echo(f"node {called} at {at}: {', '.join(wanted)}", err=True)

    opening = nodes.opened(called, token, chosen, wanted, ws.root if ws else None, film_mb * 2**20)
    _serve(play(opening, token, manager=manager, host=host, port=port, address=address, ready=ready))


@sandbox.command(epilog="Example: flywheel sandbox status --json")
@_MANAGER
@JSON
def status(manager: str, as_json: bool) -> None:
    """Nodes, places, sessions by user."""
    found = _asked("GET", manager, "/status")
    if as_json:
        click.echo(json.dumps(found))
        return
    for one in found["nodes"]:
        places = ", ".join(f"{kind} {of['taken']} of {of['of']}" for kind, of in one["places"].items())
        click.echo(f"{one['id']}: {places}{' (draining)' if one['draining'] else ''}")
    by_user = ", ".join(f"{user} {count}" for user, count in found["users"].items())
    click.echo(f"{found['sessions']} sessions{f': {by_user}' if by_user else ''}")


@sandbox.command(epilog="Example: flywheel sandbox drain gpu-7-4301")
@click.argument("name")
@_MANAGER
def drain(name: str, manager: str) -> None:
    """Lease nothing more at the node NAME; it ends with its last session."""
    _asked("POST", manager, f"/nodes/{name}/drain")
    click.echo(f"{name} is draining")


def _token() -> str:
    token = os.environ.get(_TOKEN, "")
    if len(token) < 16:
        raise BadInput(
            f"{_TOKEN} has no token of 16 characters or more", fix=f"export {_TOKEN}=$(openssl rand -hex 16)"
        )
    return token


def _asked(method: str, manager: str, path: str) -> dict[str, Any]:
    import httpx

    try:
        answer = httpx.request(
            method,
            manager + path,
            json={},
            headers={"Authorization": f"Bearer {_token()}"},
            timeout=10,
            trust_env=False,
        )
        said = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise FlywheelError(
            f"the manager does not answer: {error}", where=manager, fix="flywheel sandbox serve"
        ) from None
    if answer.status_code >= 400:
        raise BadInput(said["error"], where=said.get("where", manager), fix=said.get("fix", ""))
    return said


def _serve(work: Coroutine[Any, Any, None]) -> None:
    """Until it ends, or is told to."""

    async def run() -> None:
        task = asyncio.ensure_future(work)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
