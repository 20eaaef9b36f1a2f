"""Functions: from the lease of a warm terminal to its first text; how soon what one of shell, Python, files and an MCP
tool has written is read by the others."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator

from bench_case import BenchCase

from flywheel.agent.actions import Action, ReadFile, RunPython, Terminal, ToolCall, WriteFile
from flywheel.envs.computer.computer import Computer, WarmPool
from flywheel.envs.computer.machine import TerminalSettings
from flywheel.envs.computer.task_spec import MCP_SERVERS_FOLDER, ComputerTaskSpec

_BENCH, _PAUSE_S, _LEASE_MS, _SHARED_MS = "computer", 1.0, 50.0, 100.0
_WRITE = {
    "shell": lambda path, text: Terminal(f"echo {text} >'{path}'"),
    "python": lambda path, text: RunPython(f"with open({path!r}, 'w') as file: print({text!r}, file=file)"),
    "files": lambda path, text: WriteFile(path, f"{text}\n"),
    "tool": lambda path, text: ToolCall.of("disk.write", {"path": path, "text": f"{text}\n"}),
}
_READ = {
    "shell": lambda path: Terminal(f"cat '{path}'"),
    "python": lambda path: RunPython(f"print(open({path!r}).read(), end='')"),
    "files": lambda path: ReadFile(path),
    "tool": lambda path: ToolCall.of("disk.read", {"path": path}),
}
_SERVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from rpc import TEXT, Tool, serve

read = Tool("read", "", {"path": TEXT}, ["path"], lambda path: Path(path).read_text())
write = Tool("write", "", {"path": TEXT, "text": TEXT}, ["path"], lambda path, text: str(Path(path).write_text(text)))
serve("disk", [read, write])
"""
_DISK = {"command": ["python3", "disk.py", MCP_SERVERS_FOLDER]}


def cases(options) -> Iterator[BenchCase]:
    yield asyncio.run(_leases(options.leases))
    yield asyncio.run(_shared(options.files, random.Random(options.seed)))


async def _leases(count: int) -> BenchCase:
    """The warm computer, and what its terminal shows."""
    chosen, times = TerminalSettings(), []
    async with WarmPool(lambda: Computer.start(chosen), 1) as warm:
        for _ in range(count):
            await asyncio.sleep(_PAUSE_S)
            began = time.monotonic()
            computer = await warm.take()
            await computer.begin(ComputerTaskSpec(), chosen.timeout_s)
            times.append((time.monotonic() - began) * 1000)
            warm.fill()
            await computer.close()
    p95 = statistics.quantiles(times, n=20)[-1]
    extra = {"n": count, "median": statistics.median(times), "goal_of": "p95"}
    return BenchCase(_BENCH, "lease_ms_terminal", "ms", p95, None, "", None, _LEASE_MS, p95 <= _LEASE_MS, extra)


async def _shared(count: int, rng: random.Random) -> BenchCase:
    """From the answer to who wrote to the answers to all others. One that reads something else took for ever."""
    times, computer = [], await Computer.start(TerminalSettings())
    try:
        given = ComputerTaskSpec.model_validate({"files": {"disk.py": _SERVER}, "tools": {"disk": _DISK}})
        await computer.begin(given, TerminalSettings().timeout_s)
        await _said(computer, RunPython("1"))  # it begins with the first call
        for number in range(count):
            path, text, writer = f"folder {number % 7}/{number}.txt", f"{rng.random()}", rng.choice(list(_WRITE))
            if writer != "files":
                await _said(computer, Terminal(f"mkdir -p 'folder {number % 7}'"))
            await _said(computer, _WRITE[writer](path, text))
            for reader in _READ.keys() - {writer}:
                began = time.monotonic()
                alike = await _said(computer, _READ[reader](path)) == f"{text}\n"
                times.append((time.monotonic() - began) * 1000 if alike else float("inf"))
    finally:
        await computer.close()
    within = sum(ms <= _SHARED_MS for ms in times)
    share, p95 = within / len(times), statistics.quantiles(times, n=20)[-1]
    extra = {"n": len(times), "files": count, "median_ms": statistics.median(times), "p95_ms": p95, "goal_of": "ours"}
    name, unit = "shared_files_ms", f"fraction within {_SHARED_MS:g} ms"
    return BenchCase(_BENCH, name, unit, share, None, "", None, 1.0, share == 1.0, extra)


async def _said(computer: Computer, action: Action) -> str:
    return (await computer.do(action)).result
