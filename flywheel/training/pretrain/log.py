"""What a pretraining tells of itself: a line of `log.jsonl` at each report and each evaluation."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flywheel.training.pretrain.objectives import WEIGHTS, Losses

log = logging.getLogger(__name__)


class Log:
    """`log.jsonl`: means since the last line, and evaluations. Silent where it is not the first process."""

    def __init__(self, out: Path, speaks: bool) -> None:
        self._file, self._speaks = out / "log.jsonl", speaks
        self._began = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        self._last, self._seen, self._asked = time.monotonic(), 0, 0
        self._losses: list[tuple[float, ...]] = []

    def note(self, lost: Sequence[Losses], seen: int, asked: int) -> None:
        """lost: of the screens, and of the texts where there are some, whose copying is the one that is told."""
        aids = {name: aid.item() for part in lost for name, aid in part.aids.items()}
        copies = sum(part.answers.item() for part in lost[1:])
        self._losses.append((lost[0].answers.item(), *(aids.get(name, 0.0) for name in WEIGHTS), lost[0].right, copies))
        self._seen, self._asked = self._seen + seen, self._asked + asked

    def write(self, step: int, success: dict[str, float]) -> None:
        """scenes_s, questions_s: of this process."""
        now = time.monotonic()
        means = [round(float(mean), 4) for mean in np.mean(self._losses, axis=0)]
        self._line(
            {
                "step": step,
                **dict(zip(("answers", *WEIGHTS, "right", "copies"), means, strict=True)),
                "scenes_s": round(self._seen / (now - self._last), 1),
                "questions_s": round(self._asked / (now - self._last), 1),
                "seconds": round(now - self._began),
                "success": {kind: round(value, 2) for kind, value in success.items()},
            }
        )
        self._clear()

    def evaluation(self, step: int, result: dict[str, Any]) -> None:
        self._line({"step": step, "evaluation": result})
        self._clear()

    def _line(self, record: dict[str, Any]) -> None:
        if not self._speaks:
            return
        line = json.dumps(record)
        log.info("%s", line)
        with self._file.open("a") as file:
            file.write(line + "\n")
