"""Shared parts of the encyclopaedia's question templates: articles drawn, links followed, answers read.

Whoever answers may change the units on the way. What is asked is drawn so that the answer is one: a chain goes only
over links that are alone under their label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flywheel.envs.suites.encyclopaedia import nav
from flywheel.envs.suites.encyclopaedia.facts import Article, articles, of_kind
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Answer, Draw, Params, SiteTask

ANY_UNITS = ("units/*",)  # what may change on the way to an answer


def get(key: str) -> Article:
    """Return an article by its key."""
    return articles()[key]


def pick(d: Draw, kind: str, fits: Callable[[Article], Any] = lambda one: True) -> Article:
    """Draw an article of a kind that fits. Raises IndexError where none does."""
    return d.rng.choice([one for one in of_kind(kind) if fits(one)])


def alone(one: Article, *labels: str) -> bool:
    """Tell whether there is exactly one link under each label."""
    return all(len(one.links[label]) == 1 for label in labels)


def chain(
    name: str, text: str, level: int, budget: int, draw: Callable[[Draw], Params], answer: Callable[[Params], Answer]
) -> SiteTask:
    """Return a template of one level: follow the links of the drawn `chain`, answer with what the last article
    shows."""
    return SiteTask(
        name, text, {level: budget}, draw, _steps_chain(answer), answer=lambda _, p: answer(p), ignore=ANY_UNITS
    )


def _steps_chain(answer: Callable[[Params], Answer]) -> Callable[[Screen, Params], Move | None]:
    def steps(screen: Screen, p: Params) -> Move | None:
        return nav.follow(screen, p["chain"]) or screen.answer(str(answer(p)))

    return steps


def _name(key: str) -> str:
    """A title without what tells it from another: Singapore (city) is Singapore."""
    return get(key).title.removesuffix(" (city)")


def of_first(label: str) -> Callable[[Params], str]:
    """Return the answer: where the one link under this label of the first article leads."""
    return lambda p: _name(get(p["chain"][0]).link(label))


def of_last(label: str) -> Callable[[Params], str]:
    """Return the answer: where the first link under this label of the last article leads."""
    return lambda p: _name(get(p["chain"][-1]).links[label][0])


def last_fact(name: str) -> Callable[[Params], Answer]:
    """Return the answer: a fact of the last article."""
    return lambda p: get(p["chain"][-1]).facts[name]
