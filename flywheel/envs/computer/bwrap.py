"""Build the bubblewrap commands of machines and checkers: what they see, and which system calls they may make."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import stat
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.envs import isolation

# System calls that a machine's processes may make, as a program that the kernel runs at each (seccomp, BPF).
#
# Denied are those that lead out of a machine, or that an agent's work does not need and in which faults of the kernel
# were found: mounts and namespaces, keys (which sessions of one user share), kinds of sockets that network namespaces
# do not separate (vsock leads to the machine's own host), typing into another's terminal, and the like. They fail as if
# this user had no permission.

# By name, its numbers on x86_64 and on aarch64. Those since Linux 5.1 are the same on both.
_DENIED_CALLS: dict[str, list[int]] = json.loads(Path(__file__).with_name("denied_calls.json").read_text("ascii"))
_SOCKET_CALL, _IOCTL_CALL = (41, 198), (16, 29)
_ALLOWED_SOCKET_FAMILIES = (1, 2, 10, 16)  # of the kinds unix, IPv4, IPv6, netlink
_TERMINAL_INPUT_REQUESTS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_SCMP_REFUSE = "SCMP_ACT_ERRNO"  # with EPERM
_PROCESSORS = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # what the kernel calls it; the column above
_X32_BIT = 0x40000000  # calls of the same kernel by other numbers
_BPF_LOAD, _BPF_EQUAL, _BPF_AT_LEAST, _BPF_RETURN = 0x20, 0x15, 0x35, 0x06  # of BPF
_CALL_NUMBER, _PROCESSOR_NUMBER, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24  # places; arguments' lower halves
_CLONE_NEWUSER, _ENOSYS, _ALL_BITS = 0x10000000, 38, 0xFFFFFFFF  # the last: of what the kernel reads as 32 bits
_BPF_ALLOW, _BPF_DENY = 0x7FFF0000, 0x00050000 | 1  # with EPERM


def seccomp_program() -> bytes:
    """Build the seccomp program for this machine's processor; b"" for an unknown one."""
    known = _PROCESSORS.get(platform.machine())
    return b"".join(_bpf_program(*known)) if known else b""


def seccomp_profile() -> dict[str, Any]:
    """Build the same rules for container engines, which read JSON. Calls by another processor's numbers end the
    process.

    The calls that make user namespaces are refused too, which bubblewrap forbids by itself. clone3 hides its arguments
    from seccomp: it does not exist here, and libraries fall back to clone.
    """
    past = max(_ALLOWED_SOCKET_FAMILIES)
    denied = [kind for kind in range(past) if kind not in _ALLOWED_SOCKET_FAMILIES]
    rules = [
        {"names": list(_DENIED_CALLS), "action": _SCMP_REFUSE},
        _refuse_argument("socket", 0, "GT", past),
        *(_refuse_argument("socket", 0, "EQ", kind) for kind in denied),
        *(_refuse_argument("ioctl", 1, "MASKED_EQ", _ALL_BITS, asked) for asked in _TERMINAL_INPUT_REQUESTS),
        _refuse_argument("clone", 0, "MASKED_EQ", _CLONE_NEWUSER, _CLONE_NEWUSER),
        {"names": ["clone3"], "action": _SCMP_REFUSE, "errnoRet": _ENOSYS},
    ]
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}


def _refuse_argument(call: str, argument: int, how: str, value: int, then: int = 0) -> dict[str, Any]:
    condition = {"index": argument, "op": f"SCMP_CMP_{how}", "value": value, "valueTwo": then}
    return {"names": [call], "action": _SCMP_REFUSE, "args": [condition]}


def open_seccomp_program() -> int:
    """Return the descriptor of an open, nameless file with the seccomp program."""
    file = os.memfd_create("rules")
    os.write(file, seccomp_program())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _bpf_program(machine: int, column: int) -> Iterator[bytes]:
    """Each comparison says how many lines are passed over where it holds, and where it does not."""
    yield _bpf_instruction(_BPF_LOAD, _PROCESSOR_NUMBER)
    yield _bpf_instruction(_BPF_EQUAL, machine, 1, 0)
    yield _bpf_instruction(_BPF_RETURN, _BPF_DENY)
    yield _bpf_instruction(_BPF_LOAD, _CALL_NUMBER)
    yield _bpf_instruction(_BPF_AT_LEAST, _X32_BIT, 0, 1)
    yield _bpf_instruction(_BPF_RETURN, _BPF_DENY)
    for numbers in _DENIED_CALLS.values():
        yield _bpf_instruction(_BPF_EQUAL, numbers[column], 0, 1)
        yield _bpf_instruction(_BPF_RETURN, _BPF_DENY)
    yield _bpf_instruction(_BPF_EQUAL, _SOCKET_CALL[column], 0, len(_ALLOWED_SOCKET_FAMILIES) + 3)
    yield _bpf_instruction(_BPF_LOAD, _FIRST_ARGUMENT)
    for at, kind in enumerate(_ALLOWED_SOCKET_FAMILIES):
        yield _bpf_instruction(_BPF_EQUAL, kind, len(_ALLOWED_SOCKET_FAMILIES) - at, 0)
    yield _bpf_instruction(_BPF_RETURN, _BPF_DENY)
    yield _bpf_instruction(_BPF_RETURN, _BPF_ALLOW)
    yield _bpf_instruction(_BPF_EQUAL, _IOCTL_CALL[column], 0, len(_TERMINAL_INPUT_REQUESTS) + 1)
    yield _bpf_instruction(_BPF_LOAD, _SECOND_ARGUMENT)
    for at, request in enumerate(_TERMINAL_INPUT_REQUESTS):
        yield _bpf_instruction(_BPF_EQUAL, request, len(_TERMINAL_INPUT_REQUESTS) - at, 0)
    yield _bpf_instruction(_BPF_RETURN, _BPF_ALLOW)
    yield _bpf_instruction(_BPF_RETURN, _BPF_DENY)


def _bpf_instruction(code: int, value: int, holds: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, holds, otherwise, value)


# Commands of bubblewrap for a machine and for a checker: what they see, and how they start.

MACHINE_HOME = "/home/user"
SERVER_IN_MACHINE = "/opt/flywheel/guest"  # where the guest lies in a machine
SERVED_FOLDER = "served"  # the folder of unix sockets of services outside
SERVER_SOURCES = Path(__file__).resolve().parent.parent / "computer_server"
_CAPABILITIES = ("CAP_SYS_RESOURCE", "CAP_SETPCAP")  # with which the guest limits its machine, and gives them up
_USER_LIMITS_FOLDER = "/proc/sys/user"  # of each machine's own, and to be written with that right alone
_ETC = Path(__file__).parent / "etc"
PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MACHINE_ENVIRONMENT = {
    "HOME": MACHINE_HOME,
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "XDG_RUNTIME_DIR": "/run",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def build_machine_command(
    readable: Sequence[Path], home_bytes: int, served: Path, listening: int, ready: int, rules: int
) -> list[str]:
    """Build the command that starts a machine.

    readable: more paths of this machine that it sees. served: a folder, in there /run/served. listening, ready, rules:
    descriptors of the server's socket, of the pipe that waits for it, and of `open_seccomp_program`.
    """
    python = os.path.realpath(sys.executable)
    words = [*_unshare_options(rules), "--as-pid-1"]
    for right in _CAPABILITIES:
        words += ["--cap-add", right]
    words += _mount_options(readable, (*list_written_folders(), MACHINE_HOME), home_bytes)
    words += ["--ro-bind", str(served), f"/run/{SERVED_FOLDER}"]
    words += ["--ro-bind", str(SERVER_SOURCES), SERVER_IN_MACHINE, "--bind", *[_USER_LIMITS_FOLDER] * 2]
    words += _hiding_options()
    words += _setenv_options(build_machine_environment(Path(python).parent))
    words += ["--chdir", MACHINE_HOME, "--", python, "-I", SERVER_IN_MACHINE]
    return [*words, "--fd", str(listening), "--ready-fd", str(ready)]


def list_system_paths() -> tuple[str, ...]:
    """List the paths of the system's programs and of what they read."""
    return (*isolation.SYSTEM_FOLDERS, *isolation.list_settings_paths(), sys.base_prefix)


def list_written_folders() -> tuple[str, ...]:
    """List the folders in memory that every program may write, beside the home."""
    return (*isolation.TMPFS_FOLDERS, *isolation.list_scratch_folders())


def list_etc_files() -> dict[str, Path]:
    """List the files by which the user and the machine have names, by where they lie in there."""
    return {f"/etc/{file.name}": file for file in sorted(_ETC.iterdir())}


def build_machine_environment(*more: Path) -> dict[str, str]:
    """Build the environment of a machine's programs. more: folders of programs."""
    return {**MACHINE_ENVIRONMENT, "PATH": ":".join([f"{MACHINE_HOME}/.local/bin", PROGRAM_PATH, *map(str, more)])}


def build_checker_command(
    program: Sequence[str], bound: Mapping[str, Path], readable: Sequence[Path], memory_bytes: int, rules: int
) -> list[str]:
    """Build the command of a program that judges what was left in a machine; it may write in /tmp alone.

    bound: path in there -> path of this machine. rules: descriptor of `open_seccomp_program`.
    """
    words = [*_unshare_options(rules), *_mount_options(readable, list_written_folders(), memory_bytes)]
    for place, path in bound.items():
        words += ["--ro-bind", str(path), place]
    words += _hiding_options()
    path = f"{PROGRAM_PATH}:{Path(os.path.realpath(sys.executable)).parent}"
    words += _setenv_options({**MACHINE_ENVIRONMENT, "HOME": "/tmp", "PATH": path})
    return [*words, "--chdir", "/tmp", "--", *program]


def _unshare_options(rules: int) -> list[str]:
    words = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    words += ["--seccomp", str(rules)] if seccomp_program() else []
    return [*words, "--uid", "1000", "--gid", "1000", "--hostname", "computer", "--cap-drop", "ALL"]


def _mount_options(readable: Sequence[Path], written: Sequence[str], size_bytes: int) -> list[str]:
    """What of this machine is seen, and the places in memory that may be written."""
    words = ["--proc", "/proc", "--dev", "/dev", *isolation.mount_scratch(written, size_bytes, "0700")]
    for path in (*list_system_paths(), *map(str, readable)):
        words += ["--ro-bind-try", path, path]
    for place, file in list_etc_files().items():
        words += ["--ro-bind", str(file), place]
    return words


def _hiding_options() -> list[str]:
    """No secret is read, nothing of the system's written. It comes last: what was mounted below keeps what it has."""
    words = isolation.hide_secrets()
    for path in _root_only_proc_files():
        words += ["--ro-bind", "/dev/null", path]
    return [*words, *isolation.make_read_only()]


def _setenv_options(variables: Mapping[str, str]) -> list[str]:
    return [word for name, value in variables.items() for word in ("--setenv", name, value)]


@functools.cache
def _root_only_proc_files() -> list[str]:
    """What the kernel tells to root alone, its memory and its log, and so to any process of root's."""
    found = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not path.name.isdigit() and path.is_file() and not path.stat().st_mode & stat.S_IROTH:
                found.append(str(path))
    return sorted(found)
