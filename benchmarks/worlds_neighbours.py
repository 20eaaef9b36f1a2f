"""Neighbouring tasks for `benchmarks/worlds.py`: the same session, something else asked for."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from flywheel.envs.base import Task
from flywheel.envs.suites.catalogue import BrowserWorld
from flywheel.envs.suites.site import Site
from flywheel.envs.suites.site_tasks import Redraw
from flywheel.envs.tasks.drawing import make_task

_TRIES = 12
_DRAWN, _SALTS = 80, 12  # numbers that the draw of a small edition takes, at most; others tried for each


def neighbours(world: BrowserWorld, task: Task) -> list[Task]:
    """Tasks whose end must not count as this one's, all starting from the very screen that this one starts from.

    Of a site's records: one of the same template with other values, and one of another template, where there are
    such. Of a small edition, which has no records: the same template, drawn so that all that is on the screen is the
    same. Of a world that is neither: the same template of another seed.
    """
    if "task" in task.params:
        differs = _differs(world, task)
        return [
            other
            for drawn in (_alike(world, task), _unlike(world, task))
            for other in itertools.islice(filter(differs, drawn), 1)
        ]
    if isinstance(world.play, Site):
        return _first(_redrawn(world, task), task)
    return _first((make_task(world, task.template, task.level, task.seed + n, "eval") for n in range(1, _TRIES)), task)


def _first(others: Iterable[Task], task: Task) -> list[Task]:
    return list(itertools.islice((other for other in others if other.instruction != task.instruction), 1))


# -- on the same records -----------------------------------------------------------------------------------------------
def _alike(world: BrowserWorld, task: Task) -> Iterator[Task]:
    rng = random.Random(f"neighbour of {task.task_id}")
    for _ in range(_TRIES):
        with suppress(Redraw):
            yield _drawn(world, task, task.template, task.level, rng)


def _unlike(world: BrowserWorld, task: Task) -> Iterator[Task]:
    rng = random.Random(f"far neighbour of {task.task_id}")
    templates = world.play.tasks
    others = [name for name in templates if name != task.template]
    for template in rng.sample(others, min(_TRIES, len(others))):
        levels = templates[template].levels
        with suppress(Redraw):
            yield _drawn(world, task, template, task.level if task.level in levels else min(levels), rng)


def _drawn(world: BrowserWorld, task: Task, template: str, level: int, rng: random.Random) -> Task:
    params = world.play.draw_on(task.params["seed"], template, level, rng)
    return _asking(world, task, params, template, level)


def _asking(world: BrowserWorld, task: Task, params: dict[str, Any], template: str, level: int) -> Task:
    instruction = world.templates[template].instruction.format(**params)
    return dataclasses.replace(
        task,
        task_id=f"{task.task_id} beside: {instruction}",
        template=template,
        level=level,
        params=params,
        instruction=instruction,
        max_steps=world.budget(template, level),
    )


def _differs(world: BrowserWorld, task: Task) -> Callable[[Task], bool]:
    """Tells of another task on the same records whether its end cannot be an end of this one."""
    tasks, start = world.play.tasks, world.play.records(task.params)
    one = tasks[task.template]
    wanted = one.wanted(start, task.params)

    def differs(other: Task) -> bool:
        two = tasks[other.template]
        ended = two.wanted(start, other.params)
        if one.change is None and one.answer is None and two.change is None:
            return bool(wanted[1] and ended[1]) and _apart(*wanted[1], *ended[1])  # an answer is given on any page
        return wanted != ended

    return differs


def _apart(page: str, query: dict[str, str], other: str, asked: dict[str, str]) -> bool:
    """Whether one cannot be on both pages at once: a query that says more is still on the page that says less."""
    return page != other or any(asked.get(name, text) != text for name, text in query.items())


# -- small editions ----------------------------------------------------------------------------------------------------
class _Bent(random.Random):
    """The chance of a task's draw, but for a few numbers: much of the screen stays, what is asked for may change."""

    def __init__(self, seed: str, bent: range, salt: int) -> None:
        super().__init__(seed)
        self._bent, self._other, self._place = bent, random.Random(f"{seed} {salt}"), -1

    def getrandbits(self, bits: int, /) -> int:
        own = super().getrandbits(bits)
        self._place += 1
        return self._other.getrandbits(bits) if self._place in self._bent else own

    def random(self) -> float:
        own = super().random()
        self._place += 1
        return self._other.random() if self._place in self._bent else own


def _redrawn(world: BrowserWorld, task: Task) -> Iterator[Task]:
    small, seed = world.play.small, f"{world.name} {task.template} {task.level} {task.seed}"
    start = small.start(task.params)
    for salt in range(_SALTS):
        for place, width in itertools.product(range(_DRAWN), (1, 2, 3)):
            params = small.draw(task.template, task.level, _Bent(seed, range(place, place + width), salt))
            if small.start(params) == start:
                yield _asking(world, task, params, task.template, task.level)
