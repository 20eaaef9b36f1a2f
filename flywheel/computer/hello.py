"""The first and only thing that a machine's guest sends of itself: its home folder, open."""

from __future__ import annotations

import asyncio
import os
import socket


async def heard(ours: socket.socket) -> int | None:
    """The folder; None where the guest ends instead. ours: our end of the connection."""
    ours.setblocking(False)
    loop, there = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(ours, there.set)
    try:
        await there.wait()
    finally:
        loop.remove_reader(ours)
    try:
        _, descriptors, _, _ = socket.recv_fds(ours, 16, 1)
    except ConnectionError:
        return None
    if not descriptors:
        return None
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]
