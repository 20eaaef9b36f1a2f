"""Try and play environments, and serve them to other machines: `env ...`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

import flywheel
from flywheel.cli.options import FOLDER_OPTION, JSON_OPTION, find_workspace_here
from flywheel.utils.errors import BadInput, FlywheelError, errors_of_place


@click.command("list", epilog="Example: flywheel env page list")
@FOLDER_OPTION
@JSON_OPTION
def list_pages(workspace: Path | None, as_json: bool) -> None:
    """List the manifests that ship, and those that the settings name."""
    from flywheel import config
    from flywheel.envs.browser.pages import manifest, packages

    found = manifest.load_page_manifests([str(manifest.SHIPPED_MANIFESTS)], Path())
    if ws := find_workspace_here(workspace):
        found |= manifest.load_page_manifests(config.load_settings(ws.params).synthesis.manifests, ws.root)
    rows = [
        {
            "name": one.name,
            "title": one.title,
            "domain": one.domain,
            "tasks": len(one.variants),
            "from": one.source,
            "ready": packages.has_page_files(one) and packages.has_server_programs(one),
            "manifest": str(one.path),
        }
        for one in found.values()
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = Table("name", "what", "tasks", "from", "", box=None)
    for row, one in zip(rows, found.values(), strict=True):
        fix = "" if row["ready"] else f"flywheel env page fetch {manifest.format_command_name(one)}"
        table.add_row(row["name"], escape(row["title"]), str(row["tasks"]), escape(row["from"]), fix)
    Console().print(table)


@click.command("fetch", epilog="Example: flywheel env page fetch miniwob")
@click.argument("manifest")
def fetch_page(manifest: str) -> None:
    """Fetch the packages that a MANIFEST takes its page or server from.

    MANIFEST is a file, or the name of one that ships.
    """
    from flywheel.envs.browser.pages import manifest as pages_manifest
    from flywheel.envs.browser.pages import packages

    found = pages_manifest.load_page_manifest(pages_manifest.find_page_manifest(manifest))
    if found.server is not None:
        click.echo(f"installed into {packages.install_server_packages(found)}")
        return
    folder, checksum = packages.fetch_page_packages(found)
    pages_manifest.check_start_page(found, folder)
    click.echo(f"fetched into {folder}\nsha256: {checksum}{'' if found.sha256 else '  (put it into the manifest)'}")


@click.command("try", epilog="Example: flywheel env page try my-page/manifest.yaml --seed 3 --screenshot screen.png")
@click.argument("manifest")
@click.option("--seed", default=0, type=click.IntRange(0, 2**31 - 1))
@click.option("--variant", help="Variant of the manifest; default: the first.")
@click.option("--screenshot", type=click.Path(path_type=Path, dir_okay=False), help="Write a PNG of the first screen.")
@click.option("--no-check", is_flag=True, help="Skip the conformance suite (determinism and the rest).")
@click.option("--timeout", default=10.0, type=click.FloatRange(0.1), help="Seconds that one step may take.")
@JSON_OPTION
def try_page_command(
    manifest: str,
    seed: int,
    variant: str | None,
    screenshot: Path | None,
    no_check: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Open the page of a MANIFEST, play it at random, and check it.

    It is reset with a seed, read, played and held against the conformance suite; each fault is a line, and exit code
    1. MANIFEST is a file, or the name of one that ships.
    """
    import asyncio

    from flywheel.config import SandboxSettings, Settings
    from flywheel.envs.browser import page_check
    from flywheel.envs.browser.pages import manifest as pages_manifest
    from flywheel.envs.tasks.page_tasks import make_page_task

    found = pages_manifest.load_page_manifest(pages_manifest.find_page_manifest(manifest))
    chosen = variant or found.variants[0]
    if chosen not in found.variants:
        raise BadInput(f"no variant {chosen}", where="--variant", fix=f"one of: {', '.join(found.variants)}")
    lines: list[tuple[str, str]] = []

    def say(what: str, told: str) -> None:
        lines.append((what, told))
        if not as_json:
            click.echo(f"{what:<18} {' '.join(told.split())}")

    task = make_page_task(found, chosen, seed, "eval")
    settings = Settings(sandbox=SandboxSettings(browsers=1, pages=2, timeout_s=timeout))
    picture = screenshot or Path(f"{found.name}-{chosen}-{seed}.png")
    with errors_of_place(picture):
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.touch()
    result = asyncio.run(page_check.check_page(found, task, settings, picture, say, check=not no_check))
    verdict = "it works" if result.ok else f"it does not work: {result.wrong[0]}"
    if as_json:
        click.echo(json.dumps({"ok": result.ok, "verdict": verdict, "said": lines, **vars(result)}))
    else:
        for text in (*result.wrong[1:], *result.doubtful):
            click.echo(f"{'also':<18} {text}")
        click.echo(f"{found.name}: {verdict}")
    sys.exit(not result.ok)


@click.command(epilog="Example: flywheel env play snake --level 3 --seed 5")
@click.argument("world")
@click.option("--template", default="", show_default=False, help="Kind of task; default: the first that has the level.")
@click.option("--level", type=int, default=1)
@click.option("--seed", type=int, default=0)
def play_command(world: str, template: str, level: int, seed: int) -> None:
    """Play a task of a WORLD by hand, in an ordinary browser; WORLD may be the file of a game of rules.

    Its instruction and address are printed. Nothing of it is kept; Ctrl-C ends it.
    """
    from flywheel.envs.suites import catalogue
    from flywheel.envs.suites.rules.game import load_rule_game

    is_file = world.endswith((".yaml", ".yml", ".json"))
    suite = load_rule_game(Path(world)) if is_file else catalogue.get_world(world)
    if not template and not (having := [name for name, spec in suite.templates.items() if level in spec.max_steps]):
        levels = ", ".join(map(str, suite.levels))
        raise BadInput(f"there is no level {level}", where=f"world {world}", fix=f"its levels are {levels}")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_task(suite, template or having[0], level, seed))


async def _serve_task(suite: Any, template: str, level: int, seed: int) -> None:
    from flywheel.envs.suites.server import WorldServer
    from flywheel.envs.tasks.drawing import make_task

    task = make_task(suite, template, level, seed, "train")
    async with WorldServer() as server:
        click.echo(f"{task.instruction}\n{server.new_session(task, seed)}")
        await asyncio.Event().wait()


_PORT, _NODE_PORT = 4300, 4301
_TOKEN_VARIABLE = "FLYWHEEL_SANDBOX_TOKEN"
_MANAGER_OPTION = click.option("--manager", default=f"http://127.0.0.1:{_PORT}", help="URL of the manager.")


@click.command(epilog="Example: flywheel env server manager --state sandbox.db --per-user 200")
@click.option("--host", default="127.0.0.1")
@click.option("--port", default=_PORT, type=click.IntRange(1, 65535))
@click.option("--state", default="sandbox.db", type=click.Path(dir_okay=False, path_type=Path),
              help="Database file: a manager that was killed continues from it.")  # fmt: skip
@click.option("--lease", default=3600.0, type=click.FloatRange(1), help="Seconds that a session may last.")
@click.option("--heartbeat-timeout", default=60.0, type=click.FloatRange(1),
              help="Seconds without a sign of life of its player after which a session is reclaimed.")  # fmt: skip
@click.option("--per-user", default=0, type=click.IntRange(0), help="Sessions of a user at once; 0: no limit.")
def manager_command(host: str, port: int, state: Path, lease: float, heartbeat_timeout: float, per_user: int) -> None:
    """Run the manager, where nodes register and runs lease."""
    from flywheel.envs.remote.manager import LeaseLedger, LeasePolicy, manager_application
    from flywheel.envs.remote.node_server import serve_application

    ledger = LeaseLedger(state, LeasePolicy(lease_s=lease, silent_s=heartbeat_timeout, per_user=per_user))
    made = manager_application(ledger, _read_token())

    async def run() -> None:
        async with serve_application(made, host, port) as address:
            known = f"{len(ledger.nodes)} nodes, {len(ledger.sessions)} sessions"
            click.echo(f"manager at {address}: {known}", err=True)
            await asyncio.Event().wait()

    _run_until_stopped(run())


@click.command(epilog="Example: flywheel env server node --manager http://HOST:4300 --kind browser --kind terminal")
@FOLDER_OPTION
@_MANAGER_OPTION
@click.option(
    "--kind", "kinds", multiple=True, help="Kind of environment to offer; may be given again.  [default: browser]"
)
@click.option("--name", default="", show_default=False, help="Name at the manager.  [default: HOSTNAME-PORT]")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=_NODE_PORT, type=click.IntRange(1, 65535))
@click.option(
    "--address", default="", show_default=False, help="URL at which players find it.  [default: http://HOST:PORT]"
)
@click.option("--recording-mb", default=0, type=click.IntRange(0, 4096),
              help="MB of memory a session for its steps and screens, to watch and download; 0: none.")  # fmt: skip
def node_command(
    workspace: Path | None,
    manager: str,
    kinds: tuple[str, ...],
    name: str,
    host: str,
    port: int,
    address: str,
    recording_mb: int,
) -> None:
    """Offer this machine's environments at a manager. The workspace's settings hold for them. It ends once drained."""
    from flywheel import config
    from flywheel.envs import registry as environment_kinds
    from flywheel.envs.remote import node_server as nodes
    from flywheel.envs.remote.node_server import run_node

    ws = find_workspace_here(workspace)
    chosen, wanted = config.load_settings(ws.params) if ws else config.Settings(), kinds or ("browser",)
    environment_kinds.check_backends(chosen, wanted)
    token, called = _read_token(), name or f"{socket.gethostname()}-{port}"

    def ready(at: str) -> None:
        click.echo(f"node {called} at {at}: {', '.join(wanted)}", err=True)

    film = recording_mb * 2**20
    if ws:
        from flywheel.ui.annotate.takeover import open_takeover_node

        opening = open_takeover_node(called, token, chosen, wanted, ws, film)
    else:  # what people do has no workspace to go to
        opening = nodes.open_node(called, token, chosen, wanted, None, film)
    _run_until_stopped(run_node(opening, token, manager=manager, host=host, port=port, address=address, ready=ready))


@click.command("status", epilog="Example: flywheel env server status --json")
@_MANAGER_OPTION
@JSON_OPTION
def server_status_command(manager: str, as_json: bool) -> None:
    """Show nodes, free places, and sessions by user."""
    found = _ask_manager("GET", manager, "/status")
    if as_json:
        click.echo(json.dumps(found))
        return
    for one in found["nodes"]:
        places = ", ".join(f"{kind} {of['taken']} of {of['of']}" for kind, of in one["places"].items())
        click.echo(f"{one['id']}: {places}{' (draining)' if one['draining'] else ''}")
    by_user = ", ".join(f"{user} {count}" for user, count in found["users"].items())
    click.echo(f"{found['sessions']} sessions{f': {by_user}' if by_user else ''}")


@click.command(epilog="Example: flywheel env server drain gpu-7-4301")
@click.argument("name")
@_MANAGER_OPTION
def drain_command(name: str, manager: str) -> None:
    """Lease nothing more at the node NAME. It ends with its last session."""
    _ask_manager("POST", manager, f"/nodes/{name}/drain")
    click.echo(f"{name} is draining")


def _read_token() -> str:
    token = os.environ.get(_TOKEN_VARIABLE, "")
    if len(token) < 16:
        raise BadInput(
            f"{_TOKEN_VARIABLE} has no token of 16 characters or more",
            fix=f"export {_TOKEN_VARIABLE}=$(openssl rand -hex 16)",
        )
    return token


def _ask_manager(method: str, manager: str, path: str) -> dict[str, Any]:
    import httpx

    try:
        headers = {"Authorization": f"Bearer {_read_token()}"}
        answer = httpx.request(method, manager + path, json={}, headers=headers, timeout=10, trust_env=False)
        said = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise FlywheelError(
            f"the manager does not answer: {error}", where=manager, fix="flywheel env server manager"
        ) from None
    failed = answer.status_code >= 400
    if not isinstance(said, dict) or (failed and not isinstance(said.get("error"), str)):
        what = f"what answers with status {answer.status_code} is no manager"
        raise FlywheelError(what, where=manager, fix="look whether a proxy stands between, or name another --manager")
    if failed:
        raise BadInput(said["error"], where=said.get("where", manager), fix=said.get("fix", ""))
    return said


def _run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:  # until `work` ends, or a signal cancels it
        task = asyncio.ensure_future(work)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())


_FOLDER_TYPE = click.Path(exists=True, path_type=Path)


@click.command(epilog="Example: flywheel env osworld OSWorld/evaluation_examples/examples --files cache")
@click.argument("tasks", nargs=-1, required=True, type=_FOLDER_TYPE)
@click.option("--files", type=_FOLDER_TYPE, help="Folder with copies of what the tasks download.")
@click.option(
    "--kind", type=click.Choice(["computer", "terminal"]), default="computer", help="Environment to play them in."
)
@JSON_OPTION
def osworld_command(tasks: tuple[Path, ...], files: Path | None, kind: str, as_json: bool) -> None:
    """List which of OSWorld's TASKS can be played on this machine. For the others, say why not.

    TASKS are files, folders of them, and lists of ids such as test_all.json.
    """
    from flywheel.envs.computer.osworld import commands, suite

    paths = [one for path in tasks for one in suite.list_task_files(path)]
    played, left_out, reasons = suite.read_task_files(paths, files, kind == "computer", suite.OsworldFiles(tasks=["."]))
    if as_json:
        click.echo(json.dumps({"played": sorted(played), "left_out": left_out, "reasons": reasons}))
        return
    table = Table(Column("task", no_wrap=True), "needs", box=None)
    for name in sorted({**played, **left_out}):
        table.add_row(name, escape(left_out.get(name, "")) or "[green]is played[/green]")
    by_reason = Table("tasks", "need", box=None)
    for reason, count in reasons.items():
        by_reason.add_row(str(count), escape(reason))
    console = Console()
    console.print(table, "", by_reason)
    console.print(f"{len(played)} of {len(played) + len(left_out)} tasks are played")
    if more := reasons.get(commands.NEEDS_INTERNET_FILE, 0):
        console.print(f"{more} more where a folder of --files has what they download")


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Example: flywheel env computer-server --port 5000 --token-file token.txt",
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def computer_server_command(options: tuple[str, ...]) -> None:
    """Control the machine it runs on, as a small HTTP server.

    It listens at a `--port N` with a `--token-file FILE` (or the token in FLYWHEEL_GUEST_TOKEN), or at a
    `--socket FILE`. Its folder runs by itself wherever there is a Python.
    """
    folder = Path(flywheel.__file__).parent / "envs" / "computer_server"
    os.execv(sys.executable, [sys.executable, str(folder), *options])
