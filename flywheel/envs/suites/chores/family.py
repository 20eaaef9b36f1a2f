"""Define families of tasks, and draw words and texts for them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from flywheel.agent.actions import Action
from flywheel.envs.base import TaskSuite, TaskTemplate
from flywheel.envs.suites.chores.verifier import CHORES_VERIFIER

ChoreParams = Mapping[str, Any]
ExpertSteps = Iterator[tuple[str, Action]]


@dataclass(frozen=True)
class ChoreFamily:
    """Declare a family of tasks.

    instruction: a format string over the params. draw: returns the params of a level. play: yields an expert's thoughts
    and actions. steps: the step budget by level. alike: families with the same one draw the same from the same seed.

    Params in addition to the instruction's words: those of `ComputerTaskSpec` make the beginning, such as `files` (text
    by path; a folder ends in /), `binary` (base64 by path) and `setup` (commands). Those of the following that are
    there must all hold at the end: `wanted` (text by path, None where it must be gone), `answer`, `served` (text by
    port, None where nothing may answer; `ports` says what is requested there), `packed` (an archive's files by its
    path), `received` (the last form sent to the site), `printed` (what the commands `probe` print). Other files must
    stay, except those in `free`.
    """

    instruction: str
    draw: Callable[[int, random.Random], dict[str, Any]]
    play: Callable[[ChoreParams], ExpertSteps]
    steps: Mapping[int, int]
    alike: str = ""


class ChoreFamilySuite(TaskSuite):
    """Hold families of tasks, each a template named as in `families`; a subclass sets these and the environment."""

    families: ClassVar[Mapping[str, ChoreFamily]]

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """Draw the params of a task of the family `template`, the same for the same `level` and `seed`."""
        self.budget(template, level)
        family = self.families[template]
        return family.draw(level, random.Random(f"{self.name} {family.alike or template} {level} {seed}"))

    def play(self, template: str, params: ChoreParams) -> ExpertSteps:
        """Yield a thought and an action for each step of the expert of the family `template`. params: as drawn."""
        return self.families[template].play(params)

    @classmethod
    def make_suite(cls, name: str) -> Self:
        """Make the suite under the name `name`. Its checksum is that of this folder's files, which draw its tasks."""
        digest = hashlib.sha256()
        for path in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(path.read_bytes())
        templates = {
            name: TaskTemplate(instruction=family.instruction, verifier=CHORES_VERIFIER, max_steps=dict(family.steps))
            for name, family in cls.families.items()
        }
        return cls(name=name, domain="computer", templates=templates, checksum=digest.hexdigest())


def step_budgets(*budgets: int) -> dict[int, int]:
    """Map the levels 1, 2, 3 to their step budgets."""
    return dict(enumerate(budgets, 1))


_WORDS = """
amber anchor apple arrow autumn basket beacon birch bottle branch bread bridge bronze button cabin candle
canvas castle cedar cherry circle clay cloud clover coast copper coral cotton crystal daisy delta desert dove
dragon eagle echo ember engine falcon feather fern field flint forest garden ginger glacier globe granite
grape harbor hazel honey island ivory jacket jasmine jungle kettle ladder lagoon lantern lemon lily linen
lotus maple marble meadow mirror mist moss mountain needle nickel oasis ocean olive onyx orange orchid otter
paper pearl pebble pepper pine planet plum prairie quartz raven reef ribbon river robin rocket rose saddle
saffron sage sail salt sand shadow silver spark spruce star stone storm summit sunset table temple thistle
thunder tiger timber topaz tulip valley velvet violet walnut water willow window winter wolf zephyr
"""
_PEOPLE = """
Ada Amir Anna Arif Bela Boris Carla Chen Clara Dina Elena Emil Farah Felix Greta Hana Hugo Ines Ivan Jana
Jonas Kira Lars Lena Luca Maja Marek Mei Mina Nadia Nils Noor Olga Omar Paula Petra Rafael Rosa Samir Sofia
Tariq Tomas Ursula Vera Viktor Wei Yara Yusuf Zara Zoe
"""
CHORE_WORDS, PEOPLE_NAMES = _WORDS.split(), _PEOPLE.split()


def draw_words(rng: random.Random, count: int) -> list[str]:
    """Draw `count` different words."""
    return rng.sample(CHORE_WORDS, count)


def draw_text(rng: random.Random, lines: int, words: int = 5) -> str:
    """Draw `lines` lines of `words` words each."""
    return "".join(" ".join(rng.choices(CHORE_WORDS, k=words)) + "\n" for _ in range(lines))


def join_with_and(items: Sequence[str]) -> str:
    """Join items as a sentence lists them: a, b and c."""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]]))
