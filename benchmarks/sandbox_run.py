"""What the cases of `flywheel bench sandbox` share: options, and our sandbox over all pages. No benchmark itself."""

from __future__ import annotations

import argparse
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sandbox_pages import Pages, serve

from flywheel.config import SandboxSettings
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.suites.server import WorldServer


@dataclass(frozen=True)
class Run:
    """What all cases share. quick: fewer rounds and episodes, to see that everything works, not how fast."""

    options: argparse.Namespace
    folder: Path

    @property
    def rounds(self) -> int:
        return 2 if self.options.quick else self.options.rounds

    def count(self, full: int, quick: int) -> int:
        return quick if self.options.quick else full

    def sandbox(self, **fields: Any) -> SandboxSettings:
        options = self.options
        given = {"browsers": options.browsers, "pages": options.pages, "step_ms": options.step_ms, "timeout_s": 60.0}
        return SandboxSettings(**{**given, **fields})

    @asynccontextmanager
    async def pool(
        self, settings: SandboxSettings, html: Path | None = None
    ) -> AsyncIterator[tuple[BrowserPool, Pages]]:
        """Our sandbox over the worlds, the moving game, and MiniWoB's folder where it is given."""
        async with WorldServer() as worlds:
            with serve(html or self.folder, rest=worlds) as pages:
                async with BrowserPool(settings, pages) as pool:
                    yield pool, pages


def clicks(count: int, seed: int) -> list[tuple[float, float]]:
    rng = random.Random(seed)
    return [(rng.uniform(0.02, 0.98), rng.uniform(0.02, 0.98)) for _ in range(count)]


def quartiles(values: Sequence[float]) -> list[float]:
    return [float(np.quantile(values, share)) for share in (0.25, 0.75)]
