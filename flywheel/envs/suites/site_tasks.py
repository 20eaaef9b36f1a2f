"""Define task templates of a site: what each one asks, how it is verified, and how an expert does it.

A task is verified on the server's records (exactly the change that was asked for), on the page reached, on an answer
given by `finished(content='...')`, or on several of these. The expected records are made by the template's own
`change`, so a verifier needs no code of its own, and every side effect lowers the score.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.envs.suites import changes
from flywheel.envs.suites.messages import Messages
from flywheel.envs.suites.screen import Move, Screen

Params = dict[str, Any]
Answer = str | int | float | list[str]
Wanted = tuple[dict[str, Any], tuple[str, Mapping[str, str]] | None, Answer | None]


@dataclass(frozen=True)
class Draw:
    """Hold what a template draws from: a copy of fresh records, a seeded rng, the level, a language's messages."""

    records: dict[str, Any]
    rng: random.Random
    level: int
    t: Messages

    def pick(self, collection: str, fits: Callable[[dict[str, Any]], Any] = lambda entry: True) -> tuple[str, Any]:
        """Pick an entry of a collection that `fits`; return its key and fields. Raises Redraw where none fits."""
        fitting = [(key, entry) for key, entry in self.records[collection].items() if fits(entry)]
        if not fitting:
            raise Redraw
        return self.rng.choice(fitting)


class Redraw(Exception):
    """Report that these records hold nothing that the template could ask for; the caller draws others."""


@dataclass(frozen=True)
class SiteTask:
    """Define one template. At least one of change, page and answer says when a task is done.

    name: unique in its site. text: the instruction, a format string over the drawn params; zh: the same in Chinese.
    levels: level -> step budget at 320 x 320 pixels, a few steps more than the expert needs.
    draw(d): returns JSON values that the other parts need; may raise Redraw. Keys task, seed and instruction are
    reserved.
    change(records, params): makes the change that is asked for in a copy of the start's records.
    page(params): address of the page to be on: path, and the query values that matter ({} for none).
    answer(records, params): reads the answer from the start's records: a text, a number, or texts in any order.
    steps(screen, params): the expert: returns the next move; None where nothing is left.
    ignore: fnmatch patterns of paths of records that do not count, such as "mails/*/unread".
    """

    name: str
    text: str
    levels: Mapping[int, int]
    draw: Callable[[Draw], Params]
    steps: Callable[[Screen, Params], Move | None]
    change: Callable[[dict[str, Any], Params], None] | None = None
    page: Callable[[Params], tuple[str, Mapping[str, str]]] | None = None
    answer: Callable[[dict[str, Any], Params], Answer] | None = None
    zh: str = ""
    ignore: Iterable[str] = ()

    def __post_init__(self) -> None:
        if self.change is None and self.page is None and self.answer is None:
            raise ValueError(f"task template {self.name} says nothing of when it is done")

    @property
    def budgets(self) -> dict[int, int]:
        """Map each level to its step budget; from ten steps on it is a third more, to scroll on a small screen."""
        return {level: steps + (steps // 3 if steps >= 10 else 0) for level, steps in self.levels.items()}

    def params(self, records: dict[str, Any], level: int, rng: random.Random, t: Messages) -> dict[str, Any]:
        """Draw the params of a task on `records`, with the instruction in the language of `t`.

        level: of the task. rng: of all that is drawn. Raises Redraw where `records` do not fit or the task would be
        done already.
        """
        drawn = self.draw(Draw(changes.copy_records(records), rng, level, t))
        if self.score(records, self.wanted(records, drawn), {"records": records, "page": "", "query": {}}) == 1:
            raise Redraw
        text = self.zh if t.language == "zh" else self.text
        return {**drawn, "instruction": text.format(**drawn)}

    def wanted(self, start: dict[str, Any], params: Mapping[str, Any]) -> Wanted:
        """Return what is asked for: the records as they should become, the page to be on, the answer (None: any)."""
        goal = start
        if self.change is not None:
            goal = changes.copy_records(start)
            self.change(goal, dict(params))
        page = None if self.page is None else self.page(dict(params))
        return goal, page, None if self.answer is None else self.answer(start, dict(params))

    def score(self, start: dict[str, Any], wanted: Wanted, state: Mapping[str, Any]) -> float:
        """Score a session in [0, 1]; 1 where exactly what was asked for holds.

        start: the records that it began with. wanted: the result of the method `wanted`. state: of the session now.
        """
        goal, page, answer = wanted
        value = changes.share_of_changes(start, goal, state["records"], self.ignore)
        if page is not None and not _is_on(state, *page):
            value = 0.0
        if answer is not None and not changes.same_answer(str(state.get("answer", "")), answer):
            value = 0.0
        return value


def _is_on(state: Mapping[str, Any], path: str, query: Mapping[str, str]) -> bool:
    seen = state["query"]
    return state["page"] == path and all(
        changes.normalise_text(seen.get(name, "")) == changes.normalise_text(text) for name, text in query.items()
    )
