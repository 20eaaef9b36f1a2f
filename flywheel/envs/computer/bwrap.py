"""Build the bubblewrap commands of isolated machines and checkers: mounts, environment, and system call filter."""

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

# The filter of a machine's system calls (seccomp): a BPF program that the kernel runs at each call.
#
# It denies calls that lead out of a machine, and calls that agents do not need and in which kernel vulnerabilities were
# found: mounts and namespaces, keyrings (all processes of one user share them), socket families that network namespaces
# do not isolate (vsock leads to the host), putting input into a terminal, and the like. They fail with EPERM.

# Name of a call -> its numbers on x86_64 and on aarch64. Calls added since Linux 5.1 have the same number on both.
_DENIED_CALLS: dict[str, list[int]] = json.loads(Path(__file__).with_name("denied_calls.json").read_text("ascii"))
_SOCKET_CALL, _IOCTL_CALL = (41, 198), (16, 29)
_ALLOWED_SOCKET_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
_TERMINAL_INPUT_REQUESTS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_SCMP_REFUSE = "SCMP_ACT_ERRNO"  # the call fails with EPERM
_PROCESSORS = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # -> its AUDIT_ARCH, column of _DENIED_CALLS
_X32_BIT = 0x40000000  # set in the call numbers of x32, a second ABI of the same kernel
_BPF_LOAD, _BPF_EQUAL, _BPF_AT_LEAST, _BPF_RETURN = 0x20, 0x15, 0x35, 0x06  # opcodes of BPF
_CALL_NUMBER, _PROCESSOR_NUMBER, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24  # offsets in struct seccomp_data
_CLONE_NEWUSER, _ENOSYS, _ALL_BITS = 0x10000000, 38, 0xFFFFFFFF  # the last: mask of a 32-bit argument
_BPF_ALLOW, _BPF_DENY = 0x7FFF0000, 0x00050000 | 1  # a denied call fails with EPERM


def seccomp_program() -> bytes:
    """Build the seccomp filter, a BPF program, for the host's processor; b"" for an unknown processor."""
    known = _PROCESSORS.get(platform.machine())
    return b"".join(_bpf_program(*known)) if known else b""


def seccomp_profile() -> dict[str, Any]:
    """Build the seccomp filter as a JSON profile for container engines: the same rules as `seccomp_program`.

    System calls of another processor's ABI kill the process. Creating user namespaces is refused too; under bubblewrap
    the option --disable-userns does that. clone3 passes its flags in memory, which seccomp cannot read: it fails with
    ENOSYS, and libraries fall back to clone.
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
    """Write the seccomp filter to an anonymous file and return its descriptor, which the caller closes."""
    file = os.memfd_create("rules")
    os.write(file, seccomp_program())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _bpf_program(machine: int, column: int) -> Iterator[bytes]:
    """Yield the instructions; each comparison has the number to skip where it holds, and where it does not."""
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


# The bubblewrap commands of a machine and of a checker.

MACHINE_HOME = "/home/user"
SERVER_IN_MACHINE = "/opt/flywheel/guest"  # path of the computer server in a machine
SERVED_FOLDER = "served"  # folder in /run with the unix sockets of services on the host
SERVER_SOURCES = Path(__file__).resolve().parent.parent / "computer_server"
_CAPABILITIES = ("CAP_SYS_RESOURCE", "CAP_SETPCAP")  # the computer server sets limits with them, then drops them
_USER_LIMITS_FOLDER = "/proc/sys/user"  # of each user namespace; to write it takes CAP_SYS_RESOURCE
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
    """Build the bubblewrap command that starts a machine, with its computer server as the first process.

    readable: further host paths that it sees, read-only. home_bytes: size of its home, and of each other writable
    folder. served: host folder that is mounted at /run/served. listening, ready, rules: descriptors of the server's
    listening socket, of the socket over which it sends the home's descriptor, and of `open_seccomp_program`.
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
    """List the host's paths that a machine sees: programs, the settings that they read, and flywheel's Python."""
    return (*isolation.SYSTEM_FOLDERS, *isolation.list_settings_paths(), sys.base_prefix)


def list_written_folders() -> tuple[str, ...]:
    """List the folders, in memory, that programs in a machine may write in addition to the home."""
    return (*isolation.TMPFS_FOLDERS, *isolation.list_scratch_folders())


def list_etc_files() -> dict[str, Path]:
    """Return the files that name a machine's user and host: path in the machine -> file on the host."""
    return {f"/etc/{file.name}": file for file in sorted(_ETC.iterdir())}


def build_machine_environment(*more: Path) -> dict[str, str]:
    """Build the environment variables of a machine's programs. more: folders that are added to PATH."""
    return {**MACHINE_ENVIRONMENT, "PATH": ":".join([f"{MACHINE_HOME}/.local/bin", PROGRAM_PATH, *map(str, more)])}


def build_checker_command(
    program: Sequence[str], bound: Mapping[str, Path], readable: Sequence[Path], memory_bytes: int, rules: int
) -> list[str]:
    """Build the bubblewrap command that runs a checker on the copy of a machine's home.

    program: words of the checker's command. bound: path in the sandbox -> host path, read-only. readable: further host
    paths, at the same place. memory_bytes: size of each folder that it may write (`list_written_folders`). rules:
    descriptor of `open_seccomp_program`.
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
    """Build the options that mount the host's readable paths, and writable folders in memory of `size_bytes` each."""
    words = ["--proc", "/proc", "--dev", "/dev", *isolation.mount_scratch(written, size_bytes, "0700")]
    for path in (*list_system_paths(), *map(str, readable)):
        words += ["--ro-bind-try", path, path]
    for place, file in list_etc_files().items():
        words += ["--ro-bind", str(file), place]
    return words


def _hiding_options() -> list[str]:
    """Build the options that hide secrets and make all but earlier mounts read-only; they must come last."""
    words = isolation.hide_secrets()
    for path in _root_only_proc_files():
        words += ["--ro-bind", "/dev/null", path]
    return [*words, *isolation.make_read_only()]


def _setenv_options(variables: Mapping[str, str]) -> list[str]:
    return [word for name, value in variables.items() for word in ("--setenv", name, value)]


@functools.cache
def _root_only_proc_files() -> list[str]:
    """List the files of /proc that only root may read, such as kernel memory: a process of root's could read them."""
    found = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not path.name.isdigit() and path.is_file() and not path.stat().st_mode & stat.S_IROTH:
                found.append(str(path))
    return sorted(found)
