"""`flywheel doctor`: what is installed, what is missing, and what to type."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from flywheel.errors import FlywheelError
from flywheel.settings import Settings


@dataclass(frozen=True)
class Finding:
    """state: ok, missing (something does not work without it) or optional (not there, and not needed here)."""

    name: str
    state: str
    detail: str
    fix: str = ""


_PACKAGES = {
    "prefect": "",
    "dvc": "",
    "duckdb": "",
    "great-expectations": "",
    "torch": "",
    "transformers": "",
    "playwright": "",
    "pocketsphinx": "",
    "openai-whisper": "whisper",
    "deepspeed": "deepspeed",
}


def examine(root: Path) -> list[Finding]:
    """Look at everything; nothing is changed."""
    findings = [_python()]
    findings += [_package(name, extra) for name, extra in _PACKAGES.items()]
    findings += [_guarded("Chromium", _chromium), _guarded("sandbox", lambda: _sandbox(root))]
    findings += [_confinement(root), _isolation()]
    findings += [_fonts(), _program("git"), _program("flite", optional=True)]
    findings += [
        _guarded("workspace", lambda: _workspace(root)),
        *data(root),
        *_policy_server(root),
        _disk(root),
        _gpu(),
    ]
    return findings


def _python() -> Finding:
    return Finding("Python", "ok", ".".join(map(str, sys.version_info[:3])))


def _package(name: str, extra: str) -> Finding:
    try:
        return Finding(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        if extra:
            return Finding(name, "optional", "not installed", f"pip install -e '.[{extra}]'")
        return Finding(name, "missing", "not installed", "make setup")


def _guarded(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, "ok", look())
    except FlywheelError as error:
        return Finding(name, "missing", error.what, error.fix)


def _chromium() -> str:
    from flywheel.sandbox import chromium
    from flywheel.settings import Sandbox

    path = chromium.find(Sandbox())
    asked = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    return f"{path} {asked.stdout.strip()}"


def _sandbox(root: Path) -> str:
    """A page of a world, opened for real."""
    import asyncio

    from flywheel.sandbox import profiles

    left = len(profiles.abandoned())
    return asyncio.run(_open_a_page(_settings(root))) + (f"; folders of killed runs removed: {left}" if left else "")


async def _open_a_page(chosen: Settings) -> str:
    from flywheel.sandbox.pool import open_sandbox
    from flywheel.synthesis.tasks import make_task
    from flywheel.worlds import catalogue

    task, began = make_task(catalogue.get("tiles"), "clear", 1, 0, "train"), time.monotonic()
    async with open_sandbox(chosen) as pool, pool.env() as env:
        await env.reset(task, 0)
        seconds = time.monotonic() - began
        status = await pool.status()
    return f"a page in {seconds:.1f} s, {status.memory_mb:.0f} MB"


def _confinement(root: Path) -> Finding:
    """Of the page that `_sandbox` opened."""
    from flywheel.sandbox import chromium, confinement

    name, chosen = "Chromium's own sandbox", _settings(root).sandbox
    try:
        why = confinement.missing(chromium.find(chosen), chosen)
    except FlywheelError as error:
        return Finding(name, "missing", error.what, error.fix)
    if not why:
        return Finding(name, "ok", "on")
    return Finding(
        name, "optional", f"off: {why}. A page that breaks out of Chromium is on this machine", confinement.fix(why)
    )


def _settings(root: Path) -> Settings:
    """The workspace's; those that are broken are told by `workspace`."""
    from flywheel import settings
    from flywheel.workspace import Workspace

    try:
        return settings.load(Workspace.find(root).params)
    except FlywheelError:
        return settings.Settings()


def _isolation() -> Finding:
    """Of the servers that third-party pages bring with them, which a policy may run code in."""
    from flywheel.sandbox import isolation

    why = isolation.missing()
    if not why:
        return Finding("bubblewrap", "ok", "servers of third-party pages are kept apart from this machine")
    fix = "apt-get install bubblewrap" if "not installed" in why else "allow user namespaces"
    return Finding("bubblewrap", "optional", f"{why}: servers of third-party pages can reach this machine", fix)


def _fonts() -> Finding:
    homes = (Path("/usr/share/fonts"), Path.home() / ".fonts", Path.home() / ".local/share/fonts")
    count = sum(1 for home in homes for path in home.rglob("*.tt[fc]"))
    if count:
        return Finding("fonts", "ok", f"{count} files")
    return Finding("fonts", "missing", "none: Chromium would draw no text", "apt-get install fonts-dejavu-core")


def _program(name: str, *, optional: bool = False) -> Finding:
    path = shutil.which(name)
    if path:
        return Finding(name, "ok", path)
    return Finding(name, "optional" if optional else "missing", "not installed", f"apt-get install {name}")


def _workspace(root: Path) -> str:
    from flywheel import preflight, settings
    from flywheel.workspace import Workspace

    ws = Workspace.find(root)
    preflight.check(ws, settings.load(ws.params))
    return str(ws.root)


def data(root: Path) -> list[Finding]:
    """Only in a workspace where something has run: every recorded file, and the footer of every table's."""
    from flywheel.store import partitions, recovery
    from flywheel.workspace import Workspace

    try:
        ws = Workspace.find(root)
    except FlywheelError:  # told by `workspace`
        return []
    try:
        damage = recovery.damaged(ws)
    except FlywheelError as error:
        return [Finding("data", "missing", error.what, error.fix)]
    except OSError as error:
        return [Finding("data", "optional", f"not looked at: {error.strerror}", "make the workspace writable")]
    files = sorted(ws.data.glob("*/iteration=*/stage=*/part-*.parquet"))
    faults = [fault for file in files if (fault := partitions.fault(file, wholly=False))]
    found = [Finding("data", "missing", f"{one.path} is {one.change}", one.mend) for one in damage[:5]]
    if len(damage) > len(found):
        found.append(Finding("data", "missing", f"and {len(damage) - len(found)} more", "flywheel status"))
    told = {one.path for one in damage}
    found += [
        Finding("data", "missing", f"{fault.where}: {fault.what}", fault.fix)
        for fault in faults
        if fault.where.rpartition("/")[0] not in told
    ]
    if files and not found:
        found.append(Finding("data", "ok", f"{len(files)} Parquet files, as recorded"))
    return found


def _policy_server(root: Path) -> list[Finding]:
    """Only where the settings name one; broken settings are told by `workspace`."""
    from flywheel import settings
    from flywheel.policy import endpoint
    from flywheel.workspace import Workspace

    try:
        policy = settings.load(Workspace.find(root).params).policy
    except FlywheelError:
        return []
    return [_guarded("policy server", lambda: endpoint.look(policy))] if policy.backend == "openai" else []


def _disk(root: Path) -> Finding:
    from flywheel.preflight import NEEDED_MB

    free = shutil.disk_usage(root).free // 2**20
    state = "ok" if free >= NEEDED_MB else "missing"
    return Finding("disk", state, f"{free} MB free", "" if state == "ok" else f"free {NEEDED_MB} MB")


def _gpu() -> Finding:
    import torch

    if torch.cuda.is_available():
        return Finding("GPU", "ok", torch.cuda.get_device_name(0))
    return Finding("GPU", "optional", "none: everything runs on the CPU")
