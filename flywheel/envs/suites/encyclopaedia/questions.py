"""Share parts of the encyclopaedia's question templates: draw articles, follow links, read answers.

Answering may change the units on the way. Draws are such that each question has one answer: mostly, a chain follows
only links that are the only one under their label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flywheel.envs.suites.encyclopaedia import nav
from flywheel.envs.suites.encyclopaedia.facts import Article, articles, list_articles
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Answer, Draw, Params, SiteTask

ANY_UNITS = ("units/*",)  # paths of records that may change on the way to an answer


def get_article(key: str) -> Article:
    """Return the article `key`."""
    return articles()[key]


def draw_article(d: Draw, kind: str, fits: Callable[[Article], Any] = lambda one: True) -> Article:
    """Draw an article of a kind that `fits`. Raises IndexError where none does."""
    return d.rng.choice([one for one in list_articles(kind) if fits(one)])


def has_single_links(one: Article, *labels: str) -> bool:
    """Tell whether there is exactly one link under each of the labels."""
    return all(len(one.links[label]) == 1 for label in labels)


def chain(
    name: str, text: str, level: int, budget: int, draw: Callable[[Draw], Params], answer: Callable[[Params], Answer]
) -> SiteTask:
    """Make a template of one level: follow the links of the drawn `chain`, answer with what the last article shows."""
    return SiteTask(
        name, text, {level: budget}, draw, _steps_chain(answer), answer=lambda _, p: answer(p), ignore=ANY_UNITS
    )


def _steps_chain(answer: Callable[[Params], Answer]) -> Callable[[Screen, Params], Move | None]:
    def steps(screen: Screen, p: Params) -> Move | None:
        return nav.follow_links(screen, p["chain"]) or screen.answer(str(answer(p)))

    return steps


def _name(key: str) -> str:
    """Return an article's title without its disambiguation: Singapore for Singapore (city)."""
    return get_article(key).title.removesuffix(" (city)")


def of_first(label: str) -> Callable[[Params], str]:
    """Return an answer function: the title of the only link under `label` in the first article of the chain."""
    return lambda p: _name(get_article(p["chain"][0]).link(label))


def of_last(label: str) -> Callable[[Params], str]:
    """Return an answer function: the title of the first link under `label` in the last article of the chain."""
    return lambda p: _name(get_article(p["chain"][-1]).links[label][0])


def last_fact(name: str) -> Callable[[Params], Answer]:
    """Return an answer function: the fact `name` of the last article of the chain."""
    return lambda p: get_article(p["chain"][-1]).facts[name]
