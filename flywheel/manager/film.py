"""The steps of a session's episode with their pictures, kept for whoever watches, and packed to be taken away."""

from __future__ import annotations

import io
import json
import zipfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from flywheel.agent.actions import NAMES, Action
from flywheel.environments.env import StepResult, Task

_TIME = (1980, 1, 1, 0, 0, 0)  # of the files: equal episodes give equal bytes


class Film:
    """limit: bytes of pictures and texts; 0: nothing is kept. The oldest steps make room for new ones."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._about: dict[str, Any] = {}
        self._steps: deque[tuple[dict[str, Any], bytes | None, int]] = deque()  # each with its size
        self._number = self._size = 0

    @property
    def empty(self) -> bool:
        return not self._steps

    def begin(self, task: Task, seed: int) -> None:
        """Another episode; nothing is kept of the last one."""
        self._about = {"task": task.task_id, "instruction": task.instruction, "world": task.world, "seed": seed}
        self._steps.clear()
        self._number = self._size = 0

    def add(self, action: Action | None, result: StepResult) -> None:
        """What followed an action; None: a reset, or a checkpoint that was restored."""
        if not self._limit:
            return
        seen, info = result.observation, result.info
        step = {"step": self._number, "action": [NAMES[type(action)], asdict(action)] if action else None}
        step |= {"text": seen.text, "url": seen.url, "reward": result.reward, "score": info.get("score")}
        step |= {name: info[name] for name in ("note", "result") if name in info}
        step |= {"terminated": result.terminated, "truncated": result.truncated}
        if seen.screenshot is not None:
            step["picture"] = f"{self._number:05d}.png"
        size = len(seen.screenshot or b"") + len(json.dumps(step, default=str))
        self._steps.append((step, seen.screenshot, size))
        self._number, self._size = self._number + 1, self._size + size
        while self._size > self._limit and len(self._steps) > 1:
            self._size -= self._steps.popleft()[2]

    def packing(self) -> Callable[[], bytes]:
        """Makes a ZIP file of what is kept now: `episode.json` with the steps, and the pictures that they name. It may
        be called in another thread."""
        steps = list(self._steps)
        about = {**self._about, "left_out": self._number - len(steps), "steps": [step for step, _, _ in steps]}
        return partial(_packed, about, {step["picture"]: picture for step, picture, _ in steps if picture is not None})


def _packed(about: Mapping[str, Any], pictures: Mapping[str, bytes]) -> bytes:
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w") as file:
        file.writestr(zipfile.ZipInfo("episode.json", _TIME), json.dumps(about, indent=1, default=str))
        for name, picture in pictures.items():
            file.writestr(zipfile.ZipInfo(name, _TIME), picture)
    return kept.getvalue()
