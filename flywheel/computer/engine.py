"""An engine of containers, podman or docker, by its ordinary command: whether it works here, and the words that start a
machine as one of its containers."""

from __future__ import annotations

import functools
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flywheel.computer import seccomp, walls
from flywheel.errors import last_line
from flywheel.guest.first import FILES

HELLO = "hello"  # the socket, among those that a machine is served by, at which the guest makes itself known
OWN = "localhost/flywheel-empty:1"  # the image of ours: folders alone, in which this machine's programs are seen
_FOLDERS = ("dev", "etc", "home", "opt", "proc", "run", "sys", "tmp", "var")
_OLDEST = (3, 9)  # the Python that the guest starts under
_LOOK_S = 60.0
_BASE, _USERS = 0x70000000, 65536  # podman numbers a machine's users from there: none of them is one of this machine's
_USER = 1000
_PROCESSES = 32768  # of one user on all machines: podman may give no more, where it has not the rights of a full root
_SYS, _PRESSURE = "/sys", "/proc/pressure"  # the latter every user may write, and docker has no words for it
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")  # which engines hand on unasked


@functools.cache
def missing(engine: str, image: str) -> tuple[str, str]:
    """Why it starts no machine here, and how to mend it; empty where it does. It is tried for real.

    image: as in the settings. Ours is made where it is not there.
    """
    if shutil.which(engine) is None:
        return f"{engine} is not installed", f"install {engine}, or set machine.walls to bubblewrap"
    if why := _asked([engine, "ps", "--quiet"]):
        return f"{engine} does not work here: {why}", f"see that `{engine} ps` works for this user"
    if why := _asked([engine, "image", "inspect", image or OWN]):
        if image:
            fix = f"{engine} pull {image}, or build it: no run pulls one"
            return f"{engine} has no image {image}: {why}", fix
        if why := _asked([engine, "import", "-", OWN], _empty()):
            return f"{engine} imports no image: {why}", f"see that `{engine} import` works for this user"
    with tempfile.TemporaryDirectory(prefix="flywheel-machine-") as folder:
        words = [*_apart(engine, Path(folder)), *_seen(image, ()), *_started(image)]
        look = f"import sys; sys.version_info >= {_OLDEST} or sys.exit('Python is older than {_OLDEST}')"
        if why := _asked([*words, "-c", look]):
            return f"{engine} runs no Python in {image or OWN}: {why}", "see docs/computer.md, Containers"
    return "", ""


def command(
    engine: str, name: str, image: str, limits: Sequence[str], home_bytes: int, readable: Sequence[Path], folder: Path
) -> list[str]:
    """The words that start a machine. name: of the container. limits: as of `limited`. readable: more paths that it
    sees, as they are here. folder: the machine's own, out here."""
    words = [*_apart(engine, folder), "--name", name, *limits]
    for place in (*walls.TEMPORARY, walls.HOME):
        words += _memory(engine, place, home_bytes)
    words += [*_seen(image, readable), "--volume", f"{folder / walls.SERVED}:/run/{walls.SERVED}:ro"]
    words += ["--workdir", walls.HOME, *_started(image), walls.INSIDE]
    return [*words, "--hello", f"/run/{walls.SERVED}/{HELLO}"]


def limited(memory_mb: int, processes: int, cores: float) -> list[str]:
    memory = f"{memory_mb}m"
    return ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(processes), "--cpus", f"{cores:g}"]


def removed(engine: str, name: str) -> list[str]:
    return [engine, "rm", "--force", name]


def _apart(engine: str, folder: Path) -> list[str]:
    """A container that ends without a trace, with no network, no rights and no file that it could write."""
    rules = folder / "rules.json"
    rules.write_text(json.dumps(seccomp.profile()), encoding="ascii")
    own = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = _PROCESSES if own == resource.RLIM_INFINITY else min(own, _PROCESSES)
    words = [engine, "run", "--rm", "--pull", "never", "--network", "none", "--hostname", "computer"]
    words += ["--read-only", "--cap-drop", "ALL", "--log-driver", "none", "--ipc", "private"]
    words += ["--ulimit", "nofile={}:{}".format(*FILES), "--ulimit", f"nproc={most}:{most}"]
    for option in ("no-new-privileges", "label=disable", f"seccomp={rules}"):
        words += ["--security-opt", option]
    if engine == "podman":
        words += ["--read-only-tmpfs=false", "--no-hosts", "--security-opt", f"mask={_SYS}:{_PRESSURE}"]
    else:
        words += ["--tmpfs", f"{_SYS}:ro,size=4k,mode=0"]
    return [*words, *_user(engine)]


def _user(engine: str) -> list[str]:
    """Never root, in here or out there; where this process is not root's, its own user, whom the home belongs to."""
    root = os.geteuid() == 0
    if engine == "docker":
        return ["--user", f"{_USER}:{_USER}" if root else f"{os.geteuid()}:{os.getegid()}"]
    ids = f"0:{_BASE}:{_USERS}"
    mapped = ["--uidmap", ids, "--gidmap", ids] if root else ["--userns", f"keep-id:uid={_USER},gid={_USER}"]
    return [*mapped, "--user", f"{_USER}:{_USER}"]


def _memory(engine: str, place: str, size_bytes: int) -> list[str]:
    """A place in memory, to be written by the user alone."""
    if engine == "podman":
        return [
            "--mount",
            f"type=tmpfs,destination={place},tmpfs-size={size_bytes},tmpfs-mode=0700,chown=true,notmpcopyup",
        ]
    user, group = _user(engine)[1].split(":")
    return ["--tmpfs", f"{place}:rw,exec,nosuid,nodev,size={size_bytes},mode=0700,uid={user},gid={group}"]


def _seen(image: str, readable: Sequence[Path]) -> list[str]:
    """What of this machine is seen there: of its programs nothing, where the image has its own."""
    paths = [*([] if image else walls.system()), *map(str, readable)]
    seen = {path: path for path in paths if Path(path).exists()}
    seen |= {place: str(file) for place, file in walls.named().items()}
    seen[walls.INSIDE] = str(walls.GUEST)
    return [word for place, path in seen.items() for word in ("--volume", f"{path}:{place}:ro")]


def _started(image: str) -> list[str]:
    """Python, in the image."""
    python = Path(os.path.realpath(sys.executable))
    variables = {**walls.environment(*([] if image else [python.parent])), **dict.fromkeys(_PROXIES, "")}
    variables |= {name.upper(): value for name, value in variables.items() if name in _PROXIES}
    words = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    return [*words, "--entrypoint", "python3" if image else str(python), image or OWN, "-I"]


def _asked(words: Sequence[str], given: bytes = b"") -> str:
    """Why it failed; "" where it did not."""
    try:
        done = subprocess.run(words, input=given, capture_output=True, timeout=_LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (
        last_line(done.stderr.decode("utf-8", "replace")) or f"exit status {done.returncode}" if done.returncode else ""
    )


def _empty() -> bytes:
    """An image without a file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in _FOLDERS:
            about = tarfile.TarInfo(name)
            about.type, about.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(about)
    return out.getvalue()
