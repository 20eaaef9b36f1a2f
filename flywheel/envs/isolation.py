"""Confine servers of pages, and machines of agents, by bubblewrap: they see some folders and programs, and no network.

A policy may run code in a page's server (a notebook, a console); bubblewrap confines that code. Without bubblewrap the
code can do all that this user can; `explain_missing_bwrap` says why it is missing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_PROBE_S = 10.0
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
# Paths of /etc and /var that installed programs read; their files come from packages and hold no secret.
_SETTINGS = """
/etc/alternatives /etc/ca-certificates /etc/fonts /etc/group /etc/hosts /etc/ld.so.* /etc/localtime /etc/mime.types
/etc/nsswitch.conf /etc/passwd /etc/ssl
/etc/ImageMagick-* /etc/OpenCL /etc/X11 /etc/dictionaries-common /etc/emacs /etc/ghostscript /etc/gimp /etc/glvnd
/etc/groff /etc/gtk-* /etc/java-* /etc/libpaper.d /etc/libreoffice /etc/locale.alias /etc/lua* /etc/magic* /etc/mailcap
/etc/pango /etc/papersize /etc/perl /etc/php /etc/protocols /etc/python3* /etc/ruby* /etc/services /etc/sgml
/etc/terminfo /etc/texmf /etc/thunderbird /etc/vim /etc/vulkan /etc/xdg /etc/xml
/var/cache/fontconfig /var/lib/aspell /var/lib/dictionaries-common /var/lib/ghostscript /var/lib/ispell /var/lib/texmf
/var/lib/libreoffice /var/lib/xfonts /var/lib/xkb /var/lib/xml-core
"""
# Folders of /etc that packages fill for the system; no program reads its own settings there.
_SYSTEM_SETTINGS = """
apparmor.d apt bash_completion.d cron.d cron.daily cron.weekly default init.d logcheck logrotate.d modules-load.d pam.d
profile.d rc0.d security skel sysctl.d systemd tmpfiles.d udev
"""
_PRIVATE = ("/etc/xdg/pip",)  # every user may read it, and it may hold a registry's password
TMPFS_FOLDERS = ("/dev/shm", "/tmp", "/run")  # every program may write in these, which are in memory
_TMPFS_BYTES = 64 * 2**20  # the size of each of them
_READ_ONLY = ("/proc", "/dev", "/")  # in /proc are the kernel's settings, which a process of root may write
_UNSHARE_FLAGS = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")


@functools.cache
def explain_missing_bwrap() -> str:
    """Explain why bubblewrap cannot isolate programs from this machine; "" where it can. It is tried once, for real."""
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed"
    command = wrap_in_bwrap(["true"], "/")
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not work here: {error}"
    complaint = " ".join(tried.stderr.split())
    return f"bubblewrap does not work here: {complaint[:200] or tried.returncode}" if tried.returncode else ""


@functools.cache
def list_settings_paths() -> tuple[str, ...]:
    """List the paths of /etc and /var that exist here, that installed programs read, and that hold no secret."""
    return tuple(str(path) for name in _SETTINGS.split() for path in sorted(Path("/").glob(name[1:])))


@functools.cache
def list_scratch_folders() -> tuple[str, ...]:
    """List the folders of /var that every user may write, such as PHP's for sessions; isolated, they are seen empty."""
    found = ["/var/tmp"]
    for path in sorted(Path("/var/lib").glob("*/*")):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(mode := path.lstat().st_mode) and mode & stat.S_IWOTH:
                found.append(str(path))
    return tuple(found)


@functools.cache
def list_secrets() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """List the (folders, files) below `list_settings_paths` that isolated programs must not see.

    Those are what not every user may read, such as private keys; a process of root could read them.
    """
    hidden: tuple[list[str], list[str]] = ([], [])
    for top in list_settings_paths():
        for folder, folders, files in os.walk(top):
            for name in [*folders, *files]:
                path = f"{folder}/{name}"
                mode = os.lstat(path).st_mode
                if stat.S_ISDIR(mode) and (mode & 0o005 != 0o005 or path in _PRIVATE):
                    folders.remove(name)
                    hidden[0].append(path)
                elif stat.S_ISREG(mode) and not mode & stat.S_IROTH:
                    hidden[1].append(path)
    return tuple(hidden[0]), tuple(hidden[1])


def hide_secrets() -> list[str]:
    """Build bubblewrap's options that hide `list_secrets`; they must follow those that mount `list_settings_paths`."""
    folders, files = list_secrets()
    words = [word for path in folders for word in ("--tmpfs", path, "--remount-ro", path)]
    return words + [word for path in files for word in ("--ro-bind", "/dev/null", path)]


def mount_scratch(places: Iterable[str], size_bytes: int, mode: str) -> list[str]:
    """Build bubblewrap's options that mount an empty folder in memory at each of `places`.

    size_bytes: limit of each. mode: permissions in octal digits, such as "1777".
    """
    return [word for place in places for word in ("--perms", mode, "--size", str(size_bytes), "--tmpfs", place)]


def make_read_only() -> list[str]:
    """Build bubblewrap's last options, after which only what was mounted below /, /dev and /proc can be written.

    Otherwise programs could fill this machine's memory: bubblewrap keeps its own / and /dev there, without a limit.
    """
    return [word for place in _READ_ONLY for word in ("--remount-ro", place)]


def wrap_in_bwrap(
    command: Sequence[str], working: str, writable: Mapping[str, Path] = {}, readable: Mapping[str, Path] = {}
) -> list[str]:
    """Wrap a command in bubblewrap, where it sees only its own processes, the system's programs and given paths.

    It has no network. working: path inside, in which it starts. writable, readable: path inside -> path of this machine
    that it may write, or only read; what is missing of the latter is left out. It may also write 64 MiB in each of
    `TMPFS_FOLDERS` and `list_scratch_folders`. Returns the wrapped command.
    """
    words = ["bwrap", *_UNSHARE_FLAGS, "--proc", "/proc", "--dev", "/dev"]
    words += mount_scratch((*TMPFS_FOLDERS, *list_scratch_folders()), _TMPFS_BYTES, "1777")
    for path in (*SYSTEM_FOLDERS, *list_settings_paths(), sys.base_prefix):
        words += ["--ro-bind-try", path, path]
    words += hide_secrets()
    for place, path in readable.items():
        words += ["--ro-bind-try", str(path), place]
    for place, path in writable.items():
        words += ["--bind", str(path), place]
    return [*words, *make_read_only(), "--chdir", working, "--", *command]


def list_unseen_settings(program: Path) -> list[str]:
    """List the folders of /etc and /var where a program's Debian package keeps files that it cannot see when isolated.

    program: its path. Returns an empty list on a system without Debian's packages.
    """

    def ask(option: str, word: str) -> list[str]:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            asked = ["dpkg-query", option, word]
            return subprocess.run(asked, capture_output=True, text=True, timeout=_PROBE_S, check=False).stdout.split()
        return []

    owner = next(iter(ask("--search", str(program.resolve()))), "").rstrip(":")
    # A package has its own folder directly in /etc, or in /var/lib or /var/cache.
    tops = ("/".join(path.split("/")[: 3 if path.startswith("/etc/") else 4]) for path in ask("--listfiles", owner))
    found = {top for top in tops if top.startswith(("/etc/", "/var/lib/", "/var/cache/")) and Path(top).is_dir()}
    found -= {*list_settings_paths(), *(f"/etc/{name}" for name in _SYSTEM_SETTINGS.split())}
    return sorted(top for top in found if not any(one.startswith(top) for one in list_scratch_folders()))


def list_program_folders(program: Path) -> list[Path]:
    """List the folders that an isolated process must be able to read to run `program`.

    program: path of an executable, such as a virtual environment's Python. Of one in a virtual environment these are
    the environment and the installation of Python that it was made from; of another, its folder and the one that its
    symbolic links lead to, which may be the same.
    """
    bin_folder = program.parent
    settings = bin_folder.parent / "pyvenv.cfg"
    if not settings.is_file():
        return [bin_folder, program.resolve().parent]
    lines = (line.partition("=") for line in settings.read_text(encoding="utf-8").splitlines())
    base = next((value.strip() for name, _, value in lines if name.strip() == "home"), "")
    return [bin_folder.parent, *([Path(os.path.realpath(base)).parent] if base else [])]
