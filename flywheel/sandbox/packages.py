"""Pages that come from a registry: packages of PyPI, npm and Debian, fetched by their ordinary clients, never run.

Packages are unpacked one over another into one tree in a cache folder. Nothing in them is installed or executed: no
setup script, no hook; only the browser runs what the page itself holds.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

from flywheel.errors import BadInput, EnvError
from flywheel.files import atomic_folder
from flywheel.sandbox.manifests import PageManifest, called

FETCH_S = 300.0  # deadline of one package
_MARK = "sha256"  # file beside a fetched tree: the checksum of what is served of it


def cache() -> Path:
    """`$XDG_CACHE_HOME/flywheel/packages`, by default `~/.cache/flywheel/packages`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "flywheel" / "packages"


def served(manifest: PageManifest) -> Path:
    """The folder whose files a manifest's page is made of: its own, an installed package's, or one in the cache.

    Raises BadInput where its packages are not fetched, or are not those whose checksum the manifest gives.
    """
    if not manifest.package:
        return manifest.path.parent / manifest.folder
    installed = _installed(manifest)
    if installed is not None:
        _same(manifest, checksum(installed), installed)
        return installed
    place = _place(manifest)
    folder = place / "tree" / manifest.folder
    if not (place / _MARK).is_file():
        raise BadInput(
            f"its package is not fetched: {' '.join(manifest.package)}",
            where=manifest.path,
            fix=f"type `flywheel page fetch {called(manifest)}`",
        )
    if not folder.is_dir():
        raise BadInput(f"folder: the package has no folder {manifest.folder}", where=manifest.path, fix=_holds(place))
    _same(manifest, (place / _MARK).read_text(encoding="utf-8"), folder)
    return folder


def ready(manifest: PageManifest) -> bool:
    """Whether the files of its page are here (True where they are not ours to serve)."""
    try:
        return bool(manifest.url or manifest.server) or served(manifest).is_dir()
    except BadInput:
        return False


def fetch(manifest: PageManifest) -> tuple[Path, str]:
    """Fetch a manifest's packages into the cache: the folder that is served, and its checksum.

    Raises BadInput for a manifest without packages or with another checksum, EnvError where a registry does not give
    a package (not there, not reachable, not within FETCH_S).
    """
    if not manifest.package:
        raise BadInput("the manifest names no package", where=manifest.path, fix="there is nothing to fetch")
    place = _place(manifest)
    with atomic_folder(place) as made, tempfile.TemporaryDirectory(dir=made.parent) as archives:
        tree = made / "tree"
        tree.mkdir()
        for number, package in enumerate(manifest.package):
            archive = Path(archives) / str(number)
            archive.mkdir()
            kind, _, name = package.partition(":")
            try:
                _FETCH[kind](name, archive, tree)
            except (zipfile.BadZipFile, tarfile.TarError, OSError) as error:
                raise EnvError(f"{package} cannot be unpacked: {error}", where=manifest.path) from None
        inside = tree / manifest.folder
        if not inside.is_dir():
            raise BadInput(
                f"folder: the package has no folder {manifest.folder}", where=manifest.path, fix=_holds(made)
            )
        found = checksum(inside)
        _same(manifest, found, inside)
        (made / _MARK).write_text(found, encoding="utf-8")
    return place / "tree" / manifest.folder, found


def checksum(folder: Path) -> str:
    """sha256 over a folder's files, by name and content; a link counts by where it points to."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        if "__pycache__" in path.parts or (path.is_dir() and not path.is_symlink()):
            continue
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + hashlib.sha256(content).digest())
    return digest.hexdigest()


def _installed(manifest: PageManifest) -> Path | None:
    """The served folder of a PyPI package where exactly that version is installed beside us."""
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


def _place(manifest: PageManifest) -> Path:
    names = "\n".join((*manifest.package, manifest.folder))
    return cache() / f"{manifest.name}-{hashlib.sha256(names.encode()).hexdigest()[:12]}"


def _same(manifest: PageManifest, found: str, folder: Path) -> None:
    if manifest.sha256 and manifest.sha256 != found:
        raise BadInput(
            f"sha256: what is in {folder} has the checksum {found}",
            where=manifest.path,
            fix="it is not the package that the manifest was written for: look at it before you change the checksum",
        )


def _holds(place: Path) -> str:
    names = sorted(path.name for path in (place / "tree").iterdir())
    return f"it holds {', '.join(names[:8]) or 'nothing'}"


def _pypi(name: str, archive: Path, tree: Path) -> None:
    # Wheels alone: pip would run the set-up script of a source package.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _run([*command, "--only-binary", ":all:", "--dest", str(archive), name], archive, f"pypi:{name}")
    with zipfile.ZipFile(_only(archive, "*.whl", f"pypi:{name}")) as wheel:
        wheel.extractall(tree)


def _npm(name: str, archive: Path, tree: Path) -> None:
    _run(["npm", "pack", "--silent", "--ignore-scripts", name], archive, f"npm:{name}")
    with tarfile.open(_only(archive, "*.tgz", f"npm:{name}")) as packed:
        packed.extractall(archive / "unpacked", filter="data")
    (top,) = (archive / "unpacked").iterdir()  # one folder, mostly called `package`
    target = tree / name.rpartition("@")[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    top.rename(target)


def _deb(name: str, archive: Path, tree: Path) -> None:
    # As root apt hands the download to a user of its own, who may write neither here nor in our temporary folder.
    _run(["apt-get", "download", "--quiet", "--option", "APT::Sandbox::User=root", name], archive, f"deb:{name}")
    _run(["dpkg-deb", "--extract", str(_only(archive, "*.deb", f"deb:{name}")), str(tree)], archive, f"deb:{name}")


_FETCH = {"pypi": _pypi, "npm": _npm, "deb": _deb}


def _only(folder: Path, pattern: str, package: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise EnvError(f"the registry gave {len(found)} files", where=package, fix="check name and version")
    return found[0]


def _run(command: list[str], folder: Path, package: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise EnvError(f"{command[0]} is not installed", where=package, fix=f"install {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise EnvError(f"{command[0]} did not end within {FETCH_S:g} s", where=package, fix="try again") from None
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower() or line.startswith("E:")] or lines[-1:]
        said = errors[0].strip() if errors else f"exit status {done.returncode}"
        raise EnvError(
            f"{command[0]} could not fetch it: {said}",
            where=package,
            fix="check name and version, and that the registry is reachable",
        )
