"""Store the measured scores of each game's expert and of random play on the same levels.

A policy's score is reported as a share of the expert's, not clipped, next to the share of random play. Both players
have the same step budget in all games; `flywheel bench worlds --write-references` measures them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flywheel.envs.suites import catalogue
from flywheel.envs.suites.catalogue import BrowserWorld
from flywheel.utils.errors import DataError
from flywheel.utils.files import write_text

BUDGET = 100  # steps
SEEDS = 100


@dataclass(frozen=True)
class Played:
    """Hold means over the episodes of one player: final score in [0, 1], share of episodes won, steps made."""

    score: float
    won: float
    steps: float

    @classmethod
    def of(cls, episodes: Sequence[tuple[float, bool, int]]) -> Played:
        """Compute the means of `episodes`, (score, won, steps) each."""
        return cls(*(round(sum(map(float, part)) / len(episodes), 4) for part in zip(*episodes, strict=True)))


@dataclass(frozen=True)
class References:
    """Hold the references of a suite. checksum: of the sources measured. levels: level -> player -> means."""

    world: str
    version: int
    checksum: str
    seeds: int
    budget: int
    expert: Played
    random: Played
    levels: Mapping[str, Mapping[str, Played]]

    def normalised(self, score: float) -> float:
        """Divide `score` by the expert's, without clipping. Raises DataError where the expert's score is 0."""
        if not self.expert.score:
            raise DataError("the expert's reference is 0", where=f"world {self.world}", fix="measure it again")
        return score / self.expert.score


def write_references(world: BrowserWorld, references: References) -> Path:
    """Write the references to the suite's folder and return the path of the file. Raises DiskFull."""
    path = world.folder / catalogue.REFERENCES_FILE
    write_text(path, json.dumps(asdict(references), indent=1) + "\n")
    return path


def read_references(world: BrowserWorld) -> References:
    """Read what `write_references` wrote. Raises DataError where there is no file, or it cannot be parsed."""
    path = world.folder / catalogue.REFERENCES_FILE
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        players = {name: Played(**raw.pop(name)) for name in ("expert", "random")}
        levels = {
            level: {name: Played(**played) for name, played in by.items()} for level, by in raw.pop("levels").items()
        }
        return References(**raw, **players, levels=levels)
    except FileNotFoundError:
        raise DataError(
            "this world has no references yet", where=path, fix="flywheel bench worlds --write-references"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"these references cannot be read: {error}", where=path, fix="measure them again") from None
