"""Store, for each suite, the scores of its expert and of random play in the same tasks.

A score is told beside them (section 3.1): the share of the expert's score, not clipped, and random play's share. They
are measured at a step budget that is the same for all worlds, by `flywheel bench worlds --write-references`.
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
    """Means over the episodes of one player: score at the end in [0, 1], share of episodes won, steps made."""

    score: float
    won: float
    steps: float

    @classmethod
    def of(cls, episodes: Sequence[tuple[float, bool, int]]) -> Played:
        """episodes: (score, won, steps) of each."""
        return cls(*(round(sum(map(float, part)) / len(episodes), 4) for part in zip(*episodes, strict=True)))


@dataclass(frozen=True)
class References:
    """checksum: of the world's sources that were measured. levels: level -> both players there."""

    world: str
    version: int
    checksum: str
    seeds: int
    budget: int
    expert: Played
    random: Played
    levels: Mapping[str, Mapping[str, Played]]

    def normalised(self, score: float) -> float:
        """score / the expert's, not clipped. Raises DataError where the expert scored nothing."""
        if not self.expert.score:
            raise DataError("the expert's reference is 0", where=f"world {self.world}", fix="measure it again")
        return score / self.expert.score


def write_references(world: BrowserWorld, references: References) -> Path:
    """Keep them in the world's folder."""
    path = world.folder / catalogue.REFERENCES_FILE
    write_text(path, json.dumps(asdict(references), indent=1) + "\n")
    return path


def read_references(world: BrowserWorld) -> References:
    """What `write` kept. Raises DataError where nothing was measured or the file is not one of these."""
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
