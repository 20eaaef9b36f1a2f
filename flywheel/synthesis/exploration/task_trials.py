"""Make tasks of a site's functions, and keep those whose script works again, and random actions do not solve."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flywheel.agent.actions import Action, Wait
from flywheel.envs import conformance
from flywheel.synthesis.exploration import effects
from flywheel.synthesis.exploration.page_view import PageView, read_page_view, read_visible_text
from flywheel.synthesis.exploration.site_explorer import ExplorationReport, SiteFunction, SiteWalker
from flywheel.synthesis.exploration.steps import ControlMissing, ScriptStep
from flywheel.synthesis.exploration.wording import NotWordable, word_task, word_thoughts
from flywheel.utils.errors import EnvError

WEAK_SEEDS = 3  # random players that must all fail
_WAITS = 3  # steps that another way to the same end waits first
_MAX_STEPS = 60
_PAGE_KINDS = ("address", "control", "text", "storage", "moved")


@dataclass(frozen=True)
class TaskCandidate:
    """Hold a task of a site that is to be tried: its script, its instruction and its reward.

    functions: that it does, the last one from the end of those before. reward: JavaScript, or a reading outside of the
    page, as page manifests have it. changes: that the reward asks for. actions: of its script, once that was played,
    with a thought each.
    """

    name: str
    functions: tuple[SiteFunction, ...]
    script: tuple[ScriptStep, ...]
    instruction: str
    reward: str | dict[str, Any]
    changes: tuple[effects.Change, ...]
    actions: tuple[Action, ...] = ()
    thoughts: tuple[str, ...] = ()

    @property
    def max_steps(self) -> int:
        """Return the steps that a player may take: 4 more than twice the script's actions, or than these beyond 60."""
        return max(min(2 * len(self.actions) + 4, _MAX_STEPS), len(self.actions) + 4)

    @property
    def level(self) -> int:
        """Return the difficulty, 1 to 5: one more for each doubling of the script's actions."""
        return min(5, max(1, math.ceil(math.log2(max(len(self.actions), 1)))))


def write_reward(
    changes: Sequence[effects.Change],
    after: PageView,
    texts: Mapping[str, str],
    server: effects.ServerState,
    report: ExplorationReport,
) -> str | dict[str, Any]:
    """Write the reward of an end state: by what the server keeps where that changed, else by the page.

    changes, after, texts: as for `effects.write_page_reward`. server: what it keeps at the end. report: of the
    exploration, for the start. Raises ValueError where no reward can be written.
    """
    kept = effects.compare_server_states(report.start_server, server)
    if databases := [change for change in kept if change.kind == "database"]:
        return effects.write_database_reward(databases, report.start_server, server)
    if kept:
        return effects.write_file_reward(server)
    return effects.write_page_reward([one for one in changes if one.kind in _PAGE_KINDS], after, texts, report.masks)


def make_candidate(name: str, function: SiteFunction, report: ExplorationReport) -> TaskCandidate:
    """Make a candidate for the task of one function, named `name`.

    report: of the exploration. Raises ValueError where it cannot be told (NotWordable) or verified.
    """
    text = report.masks.hide(function.after.text)
    if function.leads_elsewhere and text in (report.masks.hide(view.text) for view in function.earlier):
        raise NotWordable("it leads back")
    if all(change.kind == "storage" for change in function.changes):
        raise NotWordable("only what the page stores changes")
    if any(step.do == "type" for step in function.steps) and _FINDS_NOTHING.search(_new_text(function)):
        raise NotWordable("it finds nothing")
    if _takes_away(function):
        raise NotWordable("it takes away what a step before did")
    instruction = word_task((function,), report.titles)
    reward = write_reward(function.changes, function.after, function.texts, function.server, report)
    return TaskCandidate(name, (function,), tuple(function.script), instruction, reward, function.changes)


_FINDS_NOTHING = re.compile(
    r"\b(no|0|zero) (\w+ )?(results?|match(es|ing)?|rows?|entries|records?|items?|documents?|hits?)\b"
    r"|\bnothing (was )?found\b|\bdid not match\b|\bnot found\b",
    re.I,
)
_HOLDS_VALUE = ("checkbox", "radio", "switch", "textbox", "searchbox", "spinbutton", "combobox", "slider")


def _new_text(function: SiteFunction) -> str:
    """Return the text that the page shows after a function, without what it showed before."""
    new = (text for place, text in function.after.regions.items() if text != function.entry.regions.get(place))
    return " ".join(new)


def _takes_away(function: SiteFunction) -> bool:
    """Tell whether a field or box that a step of the way there filled in or ticked, on the same page, no longer holds
    that at the end: to do it would be for nothing."""
    views = (*function.earlier, function.entry)
    for number, (operation, moved) in enumerate(zip(function.path, function.navigated, strict=True)):
        if moved or any(function.navigated[number:]) or function.leads_elsewhere:
            continue
        for step in operation:
            if step.role not in _HOLDS_VALUE:
                continue
            held, end = (
                next((one.state for one in view.controls if (one.role, one.place) == (step.role, step.place)), None)
                for view in (views[number + 1], function.after)
            )
            before = next(
                (one.state for one in views[number].controls if (one.role, one.place) == (step.role, step.place)), None
            )
            if None not in (held, end, before) and held != before and end != held:
                return True
    return False


@dataclass
class TrialOutcome:
    """Hold the outcome of playing a candidate's script.

    actions: that it took. thoughts: one for each of them. end: key of the state at the end, equal for equal states.
    why: what was wrong; "" for nothing.
    """

    actions: tuple[Action, ...] = ()
    thoughts: tuple[str, ...] = ()
    end: str = ""
    why: str = ""
    also: frozenset[str] = frozenset()  # other candidates whose reward holds at the end


class TaskTrials:
    """Try candidates: play their scripts, and keep the tasks that hold.

    walker: of sessions that read the reward of each candidate. report: of the exploration. seed: of the site's reset,
    and of the random play that tasks must withstand.
    """

    def __init__(self, walker: SiteWalker, report: ExplorationReport, seed: int) -> None:
        self._walker, self._report, self._seed = walker, report, seed

    async def play(self, candidate: TaskCandidate, seed: int, waits: int = 0) -> TrialOutcome:
        """Play a candidate's script from a reset with `seed`. waits: steps that pass first."""
        walker, outcome, name = self._walker, TrialOutcome(), candidate.name
        try:
            view, result = await walker.begin(seed)
            if _holds(result, name):
                return TrialOutcome(why="done at the start")
            for _ in range(waits):
                result = await walker.env.step(Wait())
            if waits:
                view = await read_page_view(walker.env.tab)
            opening = [ScriptStep("accept")] if view.dialog else []
            for number, step in enumerate((*opening, *candidate.script), -len(opening)):
                if number >= 0 and _holds(result, name):
                    return TrialOutcome(why="done before its last step" if number else "done at the start")
                before = view
                view, actions, result = await walker.do(step, view)
                outcome.actions += tuple(actions)
                outcome.thoughts += tuple(word_thoughts(step, actions, before))
            for _ in range(_WAITS):
                if _holds(result, name):
                    break
                result = await walker.env.step(Wait())
        except EnvError as error:
            return TrialOutcome(why=f"its script failed: {error.what[:60]}")
        if not _holds(result, name):
            return TrialOutcome(why="its end state did not come again")
        outcome.end = view.key(self._report.masks) + effects.hash_server_state(walker.read_server())
        outcome.also = frozenset(key for key, value in result.info["state"]["values"].items() if value and key != name)
        return outcome

    async def accept(self, candidates: Sequence[TaskCandidate], counts: Counter[str]) -> list[TaskCandidate]:
        """Return the candidates that hold, with their actions; others are counted in `counts`, as `dropped: REASON`."""
        held: list[tuple[TaskCandidate, frozenset[str]]] = []
        for one in candidates:
            first = await self.play(one, self._seed)
            again = await self.play(one, self._seed) if not first.why else first
            why = again.why or ("its end state did not come again" if first.end != again.end else "")
            if not why and (other := await self.play(one, self._seed + 1, waits=_WAITS)).why:
                why = "depends on time or chance" if "end state" in other.why else other.why
            if why:
                counts[f"dropped: {why}"] += 1
            else:
                held.append((replace(one, actions=first.actions, thoughts=first.thoughts), first.also))
        kept: list[TaskCandidate] = []
        also = {one.name: names for one, names in held}
        for one, names in held:
            if any(other.name in names and one.name in also[other.name] for other in kept):
                counts["dropped: another task has the same end"] += 1
            elif len(one.actions) < 2:
                counts["dropped: trivial, one action"] += 1
            else:
                kept.append(one)
        lucky = await self._play_weakly(max((one.max_steps for one in kept), default=0))
        counts["dropped: solved by random actions"] += sum(lucky.get(one.name, 10**9) <= one.max_steps for one in kept)
        return [one for one in kept if lucky.get(one.name, 10**9) > one.max_steps]

    async def _play_weakly(self, steps: int) -> dict[str, int]:
        """Play at random from the start; returns the fewest steps after which each candidate's reward held."""
        found: dict[str, int] = {}
        for number in range(WEAK_SEEDS):
            rng = random.Random(f"weak {self._seed} {number}")
            try:
                _, result = await self._walker.begin(self._seed)
                for step in range(1, steps + 1):
                    result = await self._walker.env.step(conformance.draw_random_action(rng))
                    for name, value in result.info["state"].get("values", {}).items():
                        if value:
                            found[name] = min(step, found.get(name, step))
                    if result.terminated:
                        break
            except EnvError:
                continue
        return found


def _holds(result: Any, name: str) -> bool:
    return bool(result.info["state"].get("values", {}).get(name))


# Extensions of known solutions: a function of the same page is done from the end state of another one.


async def extend_solutions(
    walker: SiteWalker,
    report: ExplorationReport,
    functions: Sequence[SiteFunction],
    seed: int,
    most: int,
    tell: Callable[[str], None],
) -> list[TaskCandidate]:
    """Make candidates of pairs of functions, the second one done from the end state of the first.

    walker: of the sessions in which they are played. report: of the exploration. functions: to draw pairs of. seed: of
    the draw. most: pairs that are tried at most. tell: called with the reason why a pair gives no task. Both effects
    must stand at the end.
    """
    made, counts = [], 0
    for first, second in _draw_pairs(functions, seed, most):
        try:
            view, _ = await walker.begin()
            if view.dialog:
                view, *_ = await walker.do(ScriptStep("accept"), view)
            entry = view
            for step in first.script[: len(first.script) - len(first.steps)]:
                view, *_ = await walker.do(step, view)
            entry = view
            for step in first.steps:
                view, *_ = await walker.do(step, view)
            between = view
            for step in second.steps:
                view, *_ = await walker.do(step, view)
            server = walker.read_server()
            changes = effects.compare_server_states(report.start_server, server)
            changes += effects.compare_views(report.start, entry, view, report.masks)
            if not _both_stand(first, second, changes, view):
                tell("extension: the first effect is lost")
                continue
            texts = {
                one.where: await read_visible_text(walker.env.tab, one.where) for one in changes if one.kind == "text"
            }
            counts += 1
            pair = (first, replace(second, entry=between, after=view, changes=tuple(changes)))
            reward = write_reward(changes, view, texts, server, report)
            script = (*first.script, *second.steps)
            name = f"x{counts:04}"
            made.append(TaskCandidate(name, pair, script, word_task(pair, report.titles), reward, tuple(changes)))
        except ControlMissing:
            tell("extension: the first function takes the second one's control away")
        except (EnvError, ValueError) as error:
            tell(f"extension: {getattr(error, 'what', str(error))[:60]}")
    return made


def _draw_pairs(functions: Sequence[SiteFunction], seed: int, most: int) -> list[tuple[SiteFunction, SiteFunction]]:
    """Draw pairs of functions of one state, as many of each page as of others."""
    by_state: dict[Any, list[SiteFunction]] = {}
    for one in functions:
        if not any(step.do == "accept" for step in one.steps):
            by_state.setdefault((one.path, one.entry.address), []).append(one)
    rng = random.Random(f"pairs {seed}")
    queues = []
    for group in by_state.values():
        pairs = [(a, b) for a in group for b in group if a is not b and _may_pair(a, b)]
        rng.shuffle(pairs)
        queues.append(pairs)
    found: list[tuple[SiteFunction, SiteFunction]] = []
    while len(found) < most and any(queues):
        for queue in queues:
            if queue and len(found) < most:
                found.append(queue.pop())
    return found


def _may_pair(one: SiteFunction, other: SiteFunction) -> bool:
    path, query = (effects.split_address(view.address)[0].partition("?")[0] for view in (one.entry, one.after))
    further = effects.split_address(other.after.address)[0].partition("?")[0]
    names, places = (
        [{getattr(step, name) for step in each.steps} for each in (one, other)] for name in ("name", "place")
    )
    apart = not (names[0] & names[1] or places[0] & places[1])
    return path == query == further and one.leads_elsewhere == other.leads_elsewhere and apart


def _both_stand(first: SiteFunction, second: SiteFunction, changes: Sequence[effects.Change], view: PageView) -> bool:
    """Tell whether what each of two functions changed alone has changed after both too."""
    if first.leads_elsewhere:
        parts = set(view.address.partition("#")[0].partition("?")[2].split("&"))
        new = [
            set(one.after.address.partition("#")[0].partition("?")[2].split("&"))
            - set(one.entry.address.partition("#")[0].partition("?")[2].split("&"))
            for one in (first, second)
        ]
        return all(one and one <= parts for one in new)
    there = {(one.kind, one.where) for one in changes}
    return all(any((one.kind, one.where) in there for one in function.changes) for function in (first, second))
