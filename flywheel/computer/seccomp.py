"""Which calls of the kernel a machine's processes may make, as a program that the kernel runs at each (seccomp, BPF).

Left out are those that lead beyond a machine, or that an agent's work does not need and faults of the kernel were found
in: mounts and namespaces, keys (which sessions of one user share), sockets of kinds that no network namespace keeps
apart (vsock leads to the machine's own host), keys typed into a terminal for somebody else, and the like. They fail as
if this user were not permitted to make them.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Iterator
from typing import Any

# By name the numbers on x86_64 and on aarch64. Those since Linux 5.1 are the same on both.
_DENIED = {
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "setns": (308, 268), "unshare": (272, 97), "syslog": (103, 116), "acct": (163, 89),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "quotactl": (179, 60), "vhangup": (153, 58),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "pidfd_getfd": (438, 438), "mount_setattr": (442, 442),
}  # fmt: skip
_SOCKET, _IOCTL = (41, 198), (16, 29)
_SOCKETS = (1, 2, 10, 16)  # of the kinds unix, IPv4, IPv6, netlink
_INPUTS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_REFUSE = "SCMP_ACT_ERRNO"  # with EPERM
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # what the kernel calls it; the column above
_X32 = 0x40000000  # calls of the same kernel by other numbers
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # of BPF
_NUMBER, _MACHINE, _FIRST, _SECOND = 0, 4, 16, 24  # where each stands, the arguments by their lower halves
_NEW_USER, _NO_CALL, _ALL = 0x10000000, 38, 0xFFFFFFFF  # CLONE_NEWUSER; ENOSYS; of what the kernel reads as 32 bits
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | 1  # with EPERM


def program() -> bytes:
    """For this machine's processor; b"" for one that is not known here."""
    known = _MACHINES.get(platform.machine())
    return b"".join(_lines(*known)) if known else b""


def profile() -> dict[str, Any]:
    """The same for engines of containers, which read JSON. Who calls by the numbers of another processor is ended.

    Bubblewrap forbids namespaces of users by itself: here their makers are refused. clone3 hides from us what it is
    asked for, so there is none, and libraries take clone.
    """
    past = max(_SOCKETS)
    kinds = [_where(0, "GT", past), *(_where(0, "EQ", kind) for kind in range(past) if kind not in _SOCKETS)]
    rules = [
        {"names": list(_DENIED), "action": _REFUSE},
        *({"names": ["socket"], "action": _REFUSE, "args": [kind]} for kind in kinds),
        *({"names": ["ioctl"], "action": _REFUSE, "args": [_where(1, "MASKED_EQ", _ALL, asked)]} for asked in _INPUTS),
        {"names": ["clone"], "action": _REFUSE, "args": [_where(0, "MASKED_EQ", _NEW_USER, _NEW_USER)]},
        {"names": ["clone3"], "action": _REFUSE, "errnoRet": _NO_CALL},
    ]
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}


def _where(argument: int, how: str, value: int, then: int = 0) -> dict[str, Any]:
    return {"index": argument, "op": f"SCMP_CMP_{how}", "value": value, "valueTwo": then}


def opened() -> int:
    """A file with the program; it is open, and has no name."""
    file = os.memfd_create("rules")
    os.write(file, program())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _lines(machine: int, column: int) -> Iterator[bytes]:
    """Each comparison says how many lines are passed over where it holds, and where it does not."""
    yield _line(_LOAD, _MACHINE)
    yield _line(_EQUAL, machine, 1, 0)
    yield _line(_RETURN, _DENY)
    yield _line(_LOAD, _NUMBER)
    yield _line(_AT_LEAST, _X32, 0, 1)
    yield _line(_RETURN, _DENY)
    for numbers in _DENIED.values():
        yield _line(_EQUAL, numbers[column], 0, 1)
        yield _line(_RETURN, _DENY)
    yield _line(_EQUAL, _SOCKET[column], 0, len(_SOCKETS) + 3)
    yield _line(_LOAD, _FIRST)
    for at, kind in enumerate(_SOCKETS):
        yield _line(_EQUAL, kind, len(_SOCKETS) - at, 0)
    yield _line(_RETURN, _DENY)
    yield _line(_RETURN, _ALLOW)
    yield _line(_EQUAL, _IOCTL[column], 0, len(_INPUTS) + 1)
    yield _line(_LOAD, _SECOND)
    for at, request in enumerate(_INPUTS):
        yield _line(_EQUAL, request, len(_INPUTS) - at, 0)
    yield _line(_RETURN, _ALLOW)
    yield _line(_RETURN, _DENY)


def _line(code: int, value: int, holds: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, holds, otherwise, value)
