"""What asks the manager for `flywheel bench computer --only manager`: ADDRESS SESSIONS SECONDS. It prints JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque

import aiohttp

from flywheel.envs.remote.client import TOKEN_VARIABLE

_CONNECTIONS, _BEAT_EVERY = 16, 500  # requests between two that say who is alive
_ASKED = {"user": "bench", "kind": "light", "identity": "x"}


async def main(address: str, sessions: int, seconds: float) -> None:
    headers = {"Authorization": f"Bearer {os.environ[TOKEN_VARIABLE]}"}
    held: deque[str] = deque()
    times: list[float] = []
    connector = aiohttp.TCPConnector(limit=_CONNECTIONS)
    async with aiohttp.ClientSession(address, headers=headers, connector=connector) as client:

        async def ask(method: str, path: str, body: dict) -> dict:
            began = time.perf_counter()
            async with client.request(method, path, json=body) as answer:
                answer.raise_for_status()
                said = json.loads(await answer.read())
            times.append((time.perf_counter() - began) * 1000)
            return said

        async def fill() -> None:
            while len(held) < sessions:
                held.append((await ask("POST", "/sessions", _ASKED))["session"])

        async def go_on(until: float) -> None:
            while time.perf_counter() < until:
                await ask("DELETE", f"/sessions/{held.popleft()}", {})
                held.append((await ask("POST", "/sessions", _ASKED))["session"])
                if len(times) % _BEAT_EVERY < 2:
                    await ask("POST", "/sessions/beat", {"sessions": list(held)[:1000]})

        await asyncio.gather(*(fill() for _ in range(_CONNECTIONS)))
        times.clear()
        began = time.perf_counter()
        await asyncio.gather(*(go_on(began + seconds) for _ in range(_CONNECTIONS)))
        took = time.perf_counter() - began
    print(json.dumps({"ms": times, "seconds": took, "connections": _CONNECTIONS}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
