"""How soon annotators see candidates, the next screen and their step committed: one alone, and ten at once.

    flywheel bench annotate --annotators 10 --steps 20

A server (`flywheel annotate`) runs in a process of its own on a new workspace of the profile small, with the shipped
model in it; each annotator is a WebSocket, as a page opens it, that thinks for --think seconds (drawn from half to one
and a half of it) and then accepts, plays, undoes or clicks. Times are the client's, from what is sent to what has come,
so the pages' own drawing is not in them. Per case the 95th percentile, with the median, n and the machine's load. CPU
seconds are the server's own (the policy, the journal), and its browsers' apart, over the sets of candidates: they hold
on a machine on which others work too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
import numpy as np
import psutil
from bench_case import BenchCase, emit_case, exit_code

from flywheel.cli.scaffold import create_workspace

GOALS = {"candidates": 1.0, "frame": 0.15, "committed": 0.3}  # seconds, p95
_WORDS = {
    "candidates": "from a screen to its candidates",
    "frame": "from an environment's result to its picture at the client",
    "committed": "from a decision to its step committed",
}
_PATIENCE_S = 300.0
_ADDRESS = re.compile(r"(http://\S+)/login\?key=(\S+)")


class ScriptedAnnotator:
    """Works as a person does, by chance. seconds: measured, by kind."""

    def __init__(self, number: int, think_s: float, seconds: dict[str, list[float]]) -> None:
        self._rng, self._think_s, self._seconds = random.Random(number), think_s, seconds
        self._name = f"annotator {number}"
        self._pictures: dict[str, float] = {}  # sha256 -> when it came
        self.answers: list[int] = []  # that the model was asked for, by set of candidates

    async def work(self, client: aiohttp.ClientSession, steps: int) -> int:
        """Decide `steps` times, over as many tasks as it takes; return how many sessions were finished."""
        origin = str(client._base_url.origin())
        async with client.ws_connect("/work", headers={"Origin": origin}, max_msg_size=2**24) as self._socket:
            await self._say(do="hello", annotator=self._name)
            finished = done = 0
            while done < steps:
                await self._say(do="begin", annotator=self._name)
                state = await self._hear("state")
                while not state["over"]:
                    began = time.monotonic()
                    told = await self._hear("candidates", step=state["step"])
                    self._seconds["candidates"].append(time.monotonic() - began)
                    self.answers += [told["list"][0]["samples"]] if told["list"] else []
                    await asyncio.sleep(self._think_s * self._rng.uniform(0.5, 1.5))
                    before = time.monotonic()
                    await self._say(step=state["step"], **self._choose(state, told))
                    state = await self._hear("state")
                    self._seconds["committed"].append(time.monotonic() - before)
                    self._seconds["frame"].append(self._pictures[state["screen"]] - state["at"])
                    done += 1
                await self._say(do="finish", step=state["step"])
                await self._hear("done")
                finished += 1
            return finished

    def _choose(self, state: Mapping, told: Mapping) -> dict:
        by_chance = self._rng.random()
        if by_chance < 0.1 and state["step"]:
            return {"do": "undo"}
        if by_chance < 0.6 and told["list"]:
            return {"do": "accept", "number": self._rng.choice(told["list"])["number"]}
        if by_chance < 0.7:
            return {"do": "play", "count": 1}
        point = {"x": self._rng.random(), "y": self._rng.random()}
        return {"do": "override", "gestures": [{"do": "click", **point}], "thought": "Rather this."}

    async def _say(self, **said: object) -> None:
        await self._socket.send_json(said)

    async def _hear(self, what: str, step: int | None = None) -> dict:
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                message = await self._socket.receive()
                if message.type is aiohttp.WSMsgType.BINARY:
                    self._pictures[hashlib.sha256(message.data).hexdigest()] = time.monotonic()
                    continue
                said = json.loads(message.data)
                if "error" in said:
                    raise RuntimeError(said["error"])
                if what in said and (step is None or said[what]["step"] == step) and not said[what].get("playing"):
                    return said[what]


def cpu_seconds(server: psutil.Process) -> tuple[float, float]:
    """Return the CPU seconds that the server has used, and those of its running children."""
    own = server.cpu_times()
    below = 0.0
    for child in server.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            below += sum(child.cpu_times()[:2])
    return own.user + own.system, below


async def measure(workspace: Path, count: int, steps: int, think_s: float) -> tuple[dict[str, list[float]], dict]:
    """Let `count` annotators decide `steps` times each; return the seconds by kind, and what else there is to say:
    `sessions` finished, `cpu_s` and `browser_cpu_s` a set of candidates, `answers` that the model was asked for one."""
    command = [sys.executable, "-m", "flywheel", "annotate", "-w", str(workspace)]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        found = None
        while found is None:
            line = await asyncio.wait_for(server.stdout.readline(), _PATIENCE_S)
            found = _ADDRESS.search(line.decode())
        seconds: dict[str, list[float]] = defaultdict(list)
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(found[1], cookie_jar=jar) as client:
            async with client.get("/login", params={"key": found[2]}) as answer:
                answer.raise_for_status()
            people = [ScriptedAnnotator(number, think_s, seconds) for number in range(count)]
            process = psutil.Process(server.pid)
            before = cpu_seconds(process)
            finished = await asyncio.gather(*(one.work(client, steps) for one in people))
            used = [after - since for since, after in zip(before, cpu_seconds(process), strict=True)]
        sets = len(seconds["candidates"])
        about = {"sessions": sum(finished), "cpu_s": used[0] / sets, "browser_cpu_s": used[1] / sets}
        return seconds, about | {"answers": float(np.mean([n for one in people for n in one.answers]))}
    finally:
        server.terminate()
        await server.wait()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="flywheel bench annotate", description=__doc__.partition("\n")[0])
    parser.add_argument("--annotators", type=int, default=10, help="at once, in the second case")
    parser.add_argument("--steps", type=int, default=20, help="decisions of each")
    parser.add_argument(
        "--think", type=float, default=2.0, help="seconds that one thinks before a decision, on average"
    )
    parser.add_argument("--workspace", type=Path, help="where the sessions are; default: a new one")
    asked = parser.parse_args(argv)
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        workspace = asked.workspace or create_workspace(Path(folder) / "ws", "small").root
        for count in (1, asked.annotators):
            seconds, about = asyncio.run(measure(workspace, count, asked.steps, asked.think))
            for kind, goal in GOALS.items():
                p50, p95 = map(float, np.percentile(seconds[kind], (50, 95)))
                extra = {"p50": p50, "n": len(seconds[kind]), "annotators": count, **about}
                extra |= {"load": os.getloadavg()[0], "cores": os.cpu_count(), "think_s": asked.think}
                case = f"{_WORDS[kind]}, p95, {count} at once"
                cases.append(emit_case(BenchCase("annotate", case, "s", p95, None, "", None, goal, p95 <= goal, extra)))
    return exit_code(cases)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
