"""The programs of a manifest's server: in an environment of its own where the manifest names packages, else on PATH.

The environment is made by `flywheel page fetch`, of wheels alone: no set-up script is run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from flywheel.errors import BadInput, EnvError
from flywheel.sandbox import isolation
from flywheel.sandbox.manifests import PageManifest, called

_INSTALL_S = 900.0
_MARK = "whole"  # file in an environment that is made to its end


class Programs:
    """Where the commands of a manifest's server are. Raises BadInput where one is missing, with what to type."""

    def __init__(self, manifest: PageManifest) -> None:
        self._manifest = manifest
        own = place(manifest)
        if own is not None and not _made(own):
            raise BadInput(
                f"what its server needs is not installed: {' '.join(manifest.server.packages)}",
                where=manifest.path,
                fix=f"type `flywheel page fetch {called(manifest)}`",
            )
        folders = [own / "bin"] if own is not None else []
        self.path = os.pathsep.join(map(str, (*folders, os.environ.get("PATH", os.defpath))))
        for command in (manifest.server.command, *manifest.server.setup):
            self.find(command[0])

    def find(self, name: str) -> Path:
        """The program of a command. One that is named by a path is relative to the manifest."""
        if name == "python" and not self._manifest.server.packages:
            return Path(sys.executable)
        if "/" in name:
            name = str(self._manifest.path.parent / name.replace("{manifest}", str(self._manifest.path.parent)))
        found = shutil.which(name, path=self.path)
        if found is None:
            raise BadInput(
                f"server: there is no program {name}",
                where=self._manifest.path,
                fix="install it so that it is on PATH, or name its PyPI packages in server.packages",
            )
        return Path(found).absolute()

    def needs(self, program: Path) -> list[Path]:
        """Folders that it must be able to read."""
        return isolation.home_of(program)


def ready(manifest: PageManifest) -> bool:
    """Whether the programs of its server are here (True where it has none)."""
    try:
        return manifest.server is None or bool(Programs(manifest))
    except BadInput:
        return False


def place(manifest: PageManifest) -> Path | None:
    """The environment of a manifest's server; None where it has none of its own."""
    if manifest.server is None or not manifest.server.packages:
        return None
    base = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(base) if base else Path.home() / ".cache") / "flywheel" / "servers"
    wanted = "\n".join((*manifest.server.packages, f"{sys.version_info[0]}.{sys.version_info[1]}"))
    return cache / f"{manifest.name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"


def install(manifest: PageManifest) -> Path:
    """Make the environment of a manifest's server. Raises EnvError where PyPI does not give the packages."""
    own = place(manifest)
    if own is None:
        raise BadInput("its server names no packages", where=manifest.path, fix="there is nothing to fetch")
    if not _made(own):
        # At its place from the beginning, since its programs name their Python by its path; a mark says it is whole.
        shutil.rmtree(own, ignore_errors=True)
        own.parent.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", "--without-pip", str(own)], manifest)
        pip = [sys.executable, "-m", "pip", "--python", str(own), "--disable-pip-version-check", "install", "--quiet"]
        _run([*pip, "--only-binary", ":all:", *manifest.server.packages], manifest)
        (own / _MARK).touch()
    return own


def _made(own: Path) -> bool:
    return (own / _MARK).is_file()


def _run(command: list[str], manifest: PageManifest) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_INSTALL_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        what = f"{command[2]} did not end within {_INSTALL_S:g} s"
        raise EnvError(what, where=manifest.path, fix="try again") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[-400:]
        raise EnvError(f"its server's packages were not installed: {said}", where=manifest.path)
