"""Fetch the packages of a third-party page from PyPI, npm and Debian, and install the programs of its server."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from importlib import metadata
from pathlib import Path

from flywheel.envs.browser.pages.manifest import PageManifest, format_command_name
from flywheel.utils.errors import BadInput, EnvError
from flywheel.utils.files import atomic_folder

# A page's packages are fetched by their registries' ordinary clients and unpacked, one over another, into one tree in a
# cache folder. Nothing in them is installed or executed; only the browser runs the page's own scripts.

FETCH_TIMEOUT_S = 300.0  # deadline of one package
_CHECKSUM_FILE = "sha256"  # file beside a fetched tree, with the checksum of its served folder


def find_served_folder(manifest: PageManifest) -> Path:
    """Find the folder that a manifest's page is served from: its own, an installed package's, or one in the cache.

    manifest: one with `folder` or `package`; whether a folder of its own is there is not looked at. Raises BadInput
    where its packages are not fetched, lack the folder, or do not have the checksum that the manifest gives; OSError
    where an installed one cannot be read.
    """
    if not manifest.package:
        return manifest.path.parent / manifest.folder
    installed = _find_installed(manifest)
    if installed is not None:
        _require_checksum(manifest, hash_served_folder(installed), installed)
        return installed
    place = _package_folder(manifest)
    if not (place / _CHECKSUM_FILE).is_file():
        raise _not_fetched(manifest, f"its package is not fetched: {' '.join(manifest.package)}")
    folder = _folder_in_tree(manifest, place)
    _require_checksum(manifest, (place / _CHECKSUM_FILE).read_text(encoding="utf-8"), folder)
    return folder


def _not_fetched(manifest: PageManifest, what: str) -> BadInput:
    return BadInput(what, where=manifest.path, fix=f"type `flywheel env page fetch {format_command_name(manifest)}`")


def has_page_files(manifest: PageManifest) -> bool:
    """Tell whether the files of a manifest's page are on this machine; True where it has a `url` or a `server`.

    False also where they have another checksum than the manifest gives, or cannot be read.
    """
    try:
        return bool(manifest.url or manifest.server) or find_served_folder(manifest).is_dir()
    except (BadInput, OSError):
        return False


def fetch_page_packages(manifest: PageManifest) -> tuple[Path, str]:
    """Fetch a manifest's packages into the cache; returns (the folder that is served, its checksum).

    The checksum is a sha256 in hexadecimal digits. A copy in the cache is replaced once the new one is complete. Raises
    BadInput for a manifest without packages, with another checksum, or with a folder that the packages do not have;
    EnvError where a registry does not deliver a package (missing, unreachable, not within 300 s) or it cannot be
    unpacked, as on a full disk; OSError where the cache cannot be written.
    """
    if not manifest.package:
        raise BadInput("the manifest names no package", where=manifest.path, fix="there is nothing to fetch")
    place = _package_folder(manifest)
    with atomic_folder(place) as made, tempfile.TemporaryDirectory(dir=made.parent) as archives:
        tree = made / "tree"
        tree.mkdir()
        for number, package in enumerate(manifest.package):
            archive = Path(archives) / str(number)
            archive.mkdir()
            kind, _, name = package.partition(":")
            try:
                _FETCH_BY_REGISTRY[kind](name, archive, tree)
            except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, ValueError, OSError) as error:
                raise EnvError(f"{package} cannot be unpacked: {error}", where=manifest.path) from None
        inside = _folder_in_tree(manifest, made)
        found = hash_served_folder(inside)
        _require_checksum(manifest, found, inside)
        (made / _CHECKSUM_FILE).write_text(found, encoding="utf-8")
    return place / "tree" / manifest.folder, found


def hash_served_folder(folder: Path) -> str:
    """Return the sha256, in hex, of the files below `folder`: their names and contents; of a link, its target's name.

    Files in `__pycache__` are left out; a folder that is missing counts as empty. Raises OSError for a file that cannot
    be read.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        if "__pycache__" in path.parts or (path.is_dir() and not path.is_symlink()):
            continue
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + hashlib.sha256(content).digest())
    return digest.hexdigest()


def _find_installed(manifest: PageManifest) -> Path | None:
    """Find the served folder of a PyPI package where exactly its version is installed in this environment."""
    kind, _, name = manifest.package[0].partition(":")
    if kind != "pypi" or len(manifest.package) > 1 or not manifest.folder:
        return None
    name, _, version = name.partition("==")
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    folder = Path(str(found.locate_file(manifest.folder)))
    return folder if found.version == version and folder.is_dir() else None


def _package_folder(manifest: PageManifest) -> Path:
    return _cache_folder("packages", manifest, *manifest.package, manifest.folder)


def _cache_folder(kind: str, manifest: PageManifest, *content: str) -> Path:
    """Return `$XDG_CACHE_HOME/flywheel/<kind>/<manifest's name>-<hash of content>`, by default in `~/.cache`."""
    base, digest = os.environ.get("XDG_CACHE_HOME"), hashlib.sha256("\n".join(content).encode()).hexdigest()
    return (Path(base) if base else Path.home() / ".cache") / "flywheel" / kind / f"{manifest.name}-{digest[:12]}"


def _require_checksum(manifest: PageManifest, found: str, folder: Path) -> None:
    if manifest.sha256 and manifest.sha256 != found:
        fix = "it is not the package that the manifest was written for: look at it before you change the checksum"
        raise BadInput(f"sha256: what is in {folder} has the checksum {found}", where=manifest.path, fix=fix)


def _folder_in_tree(manifest: PageManifest, place: Path) -> Path:
    folder = place / "tree" / manifest.folder
    if not folder.is_dir():
        names = sorted(path.name for path in (place / "tree").iterdir())
        there = f"it holds {', '.join(names[:8]) or 'nothing'}"
        raise BadInput(f"folder: the package has no folder {manifest.folder}", where=manifest.path, fix=there)
    return folder


def _fetch_pypi(name: str, archive: Path, tree: Path) -> None:
    # Only wheels: pip would run the set-up script of a source package.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _run_registry_client([*command, "--only-binary", ":all:", "--dest", str(archive), name], archive, f"pypi:{name}")
    with zipfile.ZipFile(_single_file(archive, "*.whl", f"pypi:{name}")) as wheel:
        wheel.extractall(tree)


def _fetch_npm(name: str, archive: Path, tree: Path) -> None:
    _run_registry_client(["npm", "pack", "--silent", "--ignore-scripts", name], archive, f"npm:{name}")
    with tarfile.open(_single_file(archive, "*.tgz", f"npm:{name}")) as packed:
        packed.extractall(archive / "unpacked", filter="data")
    (top,) = (archive / "unpacked").iterdir()  # one folder, mostly called `package`
    target = tree / name.rpartition("@")[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    top.rename(target)


def _fetch_deb(name: str, archive: Path, tree: Path) -> None:
    # As root, apt downloads as a user of its own, who may write neither here nor in our temporary folder.
    command = ["apt-get", "download", "--quiet", "--option", "APT::Sandbox::User=root", name]
    _run_registry_client(command, archive, f"deb:{name}")
    packed = _single_file(archive, "*.deb", f"deb:{name}")
    _run_registry_client(["dpkg-deb", "--extract", str(packed), str(tree)], archive, f"deb:{name}")


_FETCH_BY_REGISTRY = {"pypi": _fetch_pypi, "npm": _fetch_npm, "deb": _fetch_deb}


def _single_file(folder: Path, pattern: str, package: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise EnvError(f"the registry gave {len(found)} files", where=package, fix="check name and version")
    return found[0]


def _run(
    command: list[str], name: str, where: str | Path, timeout_s: float, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    quiet = {"capture_output": True, "stdin": subprocess.DEVNULL, "check": False}
    try:
        return subprocess.run(command, cwd=folder, text=True, errors="replace", timeout=timeout_s, **quiet)
    except subprocess.TimeoutExpired:
        raise EnvError(f"{name} did not end within {timeout_s:g} s", where=where, fix="try again") from None


def _run_registry_client(command: list[str], folder: Path, package: str) -> None:
    try:
        done = _run(command, command[0], package, FETCH_TIMEOUT_S, folder)
    except FileNotFoundError:
        raise EnvError(f"{command[0]} is not installed", where=package, fix=f"install {command[0]}") from None
    if done.returncode:
        reason = _explain_failure(package.partition(":")[0], package.partition(":")[2], done)
        fix = "check name and version, and that the registry is reachable"
        raise EnvError(f"{Path(command[0]).name} could not fetch it: {reason}", where=package, fix=fix)


_PIP_FOUND_NONE = re.compile(r"requirement ([\w.-]+)(?:\[[^]]*\])?==(\S+) \(from versions: ([^)]*)\)")
_NEWEST = 3  # versions that the message lists


def _explain_failure(registry: str, package: str, done: subprocess.CompletedProcess[str]) -> str:
    """Say in one line why a registry's client failed.

    That is a version that does not exist, with the newest ones that do; else the client's last line of an error.
    registry: pypi, npm or deb. package: name and version as the client got them. "" for both: an installation by pip.
    """
    said = done.stderr + done.stdout
    if found := _PIP_FOUND_NONE.search(said):
        name, version, there = found.groups()
        needs = re.search(rf"(?<![\w.]){re.escape(version)} Requires-Python ([^;\s]+)", said)
        ours = f"{version} for Python {sys.version_info[0]}.{sys.version_info[1]}"
        ours += f" (it needs {needs[1]})" if needs else ""
        return _tell_versions(name, ours, [] if there == "none" else there.split(", "))
    name, _, version = package.rpartition("@" if registry == "npm" else "=")
    if registry in ("npm", "deb") and version:
        versions = _list_versions(registry, name)
        if version not in versions:
            return _tell_versions(name, version, versions)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"ERROR|E:|npm error (?!code|A complete)", line)] or lines
    return errors[-1] if errors else f"exit status {done.returncode}"


def _tell_versions(name: str, version: str, versions: list[str]) -> str:
    """Say that a version does not exist. versions: those that do, newest last; the message prefers releases."""
    if not versions:
        return f"there is no {name} {version}, nor any other version of that name"
    newest = ([one for one in versions if not re.search(r"\d(a|b|rc|\.dev|-\D)", one)] or versions)[-_NEWEST:]
    return f"there is no {name} {version}; the newest are {', '.join(reversed(newest))}"


def _list_versions(registry: str, name: str) -> list[str]:
    """List a package's versions, the newest last; empty where the registry names none."""
    command = ["npm", "view", name, "versions", "--json"] if registry == "npm" else ["apt-cache", "madison", name]
    with contextlib.suppress(FileNotFoundError, EnvError, ValueError):
        said = _run(command, command[0], name, FETCH_TIMEOUT_S).stdout
        if registry == "npm":
            told = json.loads(said)
            return [told] if isinstance(told, str) else [one for one in told if isinstance(one, str)]
        return list(reversed([line.split("|")[1].strip() for line in said.splitlines() if line.count("|") > 1]))
    return []


# The programs of a manifest's server: in its own virtual environment where the manifest names packages, else on PATH.

_INSTALL_TIMEOUT_S = 900.0
_VENV_MARK = "whole"  # file in a complete virtual environment


class ServerPrograms:
    """Find the programs of a manifest's server. Raises BadInput, with what to type, where one is missing.

    manifest: one with a `server`. path: the PATH on which they are looked for.
    """

    def __init__(self, manifest: PageManifest) -> None:
        self._manifest = manifest
        own = server_venv(manifest)
        if own is not None and not _is_complete(own):
            needed = " ".join(manifest.server.packages)
            raise _not_fetched(manifest, f"what its server needs is not installed: {needed}")
        folders = [own / "bin"] if own is not None else []
        self.path = os.pathsep.join(map(str, (*folders, os.environ.get("PATH", os.defpath))))
        for command in (manifest.server.command, *manifest.server.setup):
            self.find(command[0])

    def find(self, name: str) -> Path:
        """Find the program of a command of the server. Returns its absolute path.

        name: one with a slash is a path relative to the manifest, where `{manifest}` is its folder; `python`, of a
        server without packages, is ours; another is looked for on `path`. Raises BadInput where there is none.
        """
        if name == "python" and not self._manifest.server.packages:
            return Path(sys.executable)
        if "/" in name:
            name = str(self._manifest.path.parent / name.replace("{manifest}", str(self._manifest.path.parent)))
        found = shutil.which(name, path=self.path)
        if found is None:
            fix = "install it so that it is on PATH, or name its PyPI packages in server.packages"
            raise BadInput(f"server: there is no program {name}", where=self._manifest.path, fix=fix)
        return Path(found).absolute()


def has_server_programs(manifest: PageManifest) -> bool:
    """Tell whether the programs of a manifest's server are on this machine; True where it has no server.

    False where its packages are not installed completely, or one of its commands is not found.
    """
    try:
        return manifest.server is None or bool(ServerPrograms(manifest))
    except BadInput:
        return False


def server_venv(manifest: PageManifest) -> Path | None:
    """Return the folder for the virtual environment of a manifest's server, made or not; None where it needs none."""
    if manifest.server is None or not manifest.server.packages:
        return None
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return _cache_folder("servers", manifest, *manifest.server.packages, python)


def install_server_packages(manifest: PageManifest) -> Path:
    """Install the PyPI packages of a manifest's server into a virtual environment of its own; returns its folder.

    It lies in the cache (`server_venv`) and is made of wheels only, so that no set-up script runs. A complete one is
    left unchanged, another is deleted and made anew. Raises BadInput where the manifest names no packages of a server,
    EnvError where PyPI does not deliver them, the environment cannot be made, or either takes more than 900 s; OSError
    where the cache cannot be written.
    """
    own = server_venv(manifest)
    if own is None:
        raise BadInput("its server names no packages", where=manifest.path, fix="there is nothing to fetch")
    if not _is_complete(own):
        # It is made at its final place, since its programs name their Python by path; a mark says that it is complete.
        shutil.rmtree(own, ignore_errors=True)
        own.parent.mkdir(parents=True, exist_ok=True)
        _run_installer([sys.executable, "-m", "venv", "--without-pip", str(own)], manifest)
        pip = [sys.executable, "-m", "pip", "--python", str(own), "--disable-pip-version-check", "install", "--quiet"]
        _run_installer([*pip, "--only-binary", ":all:", *manifest.server.packages], manifest)
        (own / _VENV_MARK).touch()
    return own


def _is_complete(own: Path) -> bool:
    return (own / _VENV_MARK).is_file()


def _run_installer(command: list[str], manifest: PageManifest) -> None:
    done = _run(command, command[2], manifest.path, _INSTALL_TIMEOUT_S)
    if done.returncode:
        reason = _explain_failure("", "", done)
        raise EnvError(f"its server's packages were not installed: {reason}", where=manifest.path)
