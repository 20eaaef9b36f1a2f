"""Try a third-party page (`flywheel env page try`): open it, read it, play at random, and report what is wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from flywheel.agent.actions import Action, Click, Drag, Hotkey, Point, Type, Wait
from flywheel.config import Settings
from flywheel.envs import conformance, isolation
from flywheel.envs.base import StepResult, Task
from flywheel.envs.browser.pages.manifest import PageManifest
from flywheel.envs.browser.pages.packages import ServerPrograms
from flywheel.envs.browser.pages.session import ManifestPages
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.conformance import ConformanceCase, NotReproducible, SeedComparison
from flywheel.utils.errors import BadInput, EnvError, FlywheelError

_PAGE_SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8").rstrip()

# Controls and drags: each is tried in its own session, which must not affect an idle one in the same browser.


@dataclass(frozen=True)
class PartResult:
    """Hold the result of trying one part of a page (a control or a drag).

    wrong: what broke, or differed between two tries; "" for nothing. seen: whether it changed something, as far as can
    be told.
    """

    part: str
    wrong: str = ""
    seen: bool = True


async def _try_beside_neighbour(
    pool: BrowserPool, task: Task, parts: Sequence[str], attempt: Callable[[str], Awaitable[PartResult]]
) -> list[PartResult]:
    """Try the parts one after the other, and after each whether the neighbour, an idle session, still works.

    pool: of one browser with room for two sessions. attempt: tries one part.
    """

    quiet, left, found = dataclasses.replace(task, max_steps=10_000), list(parts), []
    while left:
        async with pool.env() as neighbour:
            await neighbour.reset(quiet, quiet.seed)
            harm = ""  # a neighbour that was harmed is replaced
            while left and not harm:
                result = await attempt(left.pop(0))
                try:
                    if (await neighbour.step(Wait())).terminated:  # a game that ends with time alone
                        await neighbour.reset(quiet, quiet.seed)
                except FlywheelError as error:
                    harm = f"another session in the same browser was harmed: {error.what}"
                found.append(PartResult(result.part, result.wrong or harm) if harm else result)
    return found


# Form controls: one of each kind is operated by mouse and keys, as a person would. The browser itself draws controls
# and their pickers, which may break a session without the page's script noticing.

_MAX_CONTROL_KINDS = 20  # that are tried on one page


async def try_controls(pool: BrowserPool, task: Task) -> list[PartResult]:
    """Operate one form control of each kind that a page has, of the first 20 kinds; returns a result for each kind.

    Raises EnvError where no page is free, or a session fails before the first try or beside the tries; BadInput and
    DataError as `Env.reset`. What breaks in a try is in its result.
    """
    async with pool.env() as env:
        await env.reset(task, task.seed)
        kinds = (await env.tab.evaluate(f"{_PAGE_SCRIPT}.kinds()"))[:_MAX_CONTROL_KINDS]

    async def attempt(kind: str) -> PartResult:
        try:
            async with pool.env() as env:
                await env.reset(task, task.seed)
                return PartResult(kind, seen=await _operate_control(env, kind))
        except FlywheelError as error:
            return PartResult(kind, error.what)

    return await _try_beside_neighbour(pool, task, kinds, attempt)


async def _operate_control(env: Any, kind: str) -> bool:
    """Operate the first control of a kind; returns False where its value certainly did not change."""
    place = await env.tab.evaluate(f"{_PAGE_SCRIPT}.place({json.dumps(kind)})")
    if place is None or place["covered"]:
        return True  # the control is gone, or the page covers it
    for action in _control_actions(kind, place):
        if (await env.step(action)).terminated:
            return True
    if kind in _KINDS_WITHOUT_VALUE:
        return True
    return await env.tab.evaluate(f"{_PAGE_SCRIPT}.held()") != place["held"]


def _control_actions(kind: str, place: dict[str, float]) -> Sequence[Action]:
    def at(across: float) -> Click:
        x, y = place["x"] + across * place["w"], place["y"] + place["h"] / 2
        return Click(Point(min(max(x, 0.0), 0.999), min(max(y, 0.0), 0.999)))

    if kind.startswith("select"):
        return at(0.5), Hotkey(("down",)), Hotkey(("enter",))
    if kind in _TYPED_TEXTS:
        typed = [Type(text) if text != "tab" else Hotkey(("tab",)) for text in _TYPED_TEXTS[kind]]
        return at(0.1), *typed, at(0.95), Hotkey(("esc",))
    if kind in ("input of type checkbox", "input of type radio", "details"):
        return (at(0.5),)
    if kind == "input of type range":
        return at(0.2), at(0.8)
    if kind in _KINDS_WITHOUT_VALUE:
        return at(0.5), Hotkey(("esc",))
    return at(0.5), Type("1")


# Each part of a date is a separate field; behind the last one is the picker's button.
_TYPED_TEXTS = {
    "input of type date": ("01022026",),
    "input of type time": ("0102AM",),
    "input of type month": ("01", "2026"),
    "input of type week": ("01", "2026"),
    "input of type datetime-local": ("01022026", "tab", "0102AM"),
}
_KINDS_WITHOUT_VALUE = ("input of type file", "input of type color")  # nothing is chosen in their picker


# Dragging: by HTML5 drag and drop, and by libraries that follow the pointer.

_LONE_DRAG_SHARE = 0.2  # of the viewport's width: how far a thing is dragged where there is no second one


async def try_drags(pool: BrowserPool, task: Task) -> list[PartResult]:
    """Try twice each kind of drag that a page offers; returns a result for each kind. Raises as `try_controls`."""
    async with pool.env() as env:
        await env.reset(task, task.seed)
        offered = dict(await env.tab.evaluate(f"{_PAGE_SCRIPT}.draggables()"))
    return await _try_beside_neighbour(pool, task, list(offered), lambda way: _try_drag(pool, task, way, offered[way]))


async def _try_drag(pool: BrowserPool, task: Task, way: str, places: list[list[float]]) -> PartResult:
    start = Point(*places[0])
    end = Point(*places[1]) if len(places) > 1 else Point((start.x + _LONE_DRAG_SHARE) % 1, start.y)
    try:
        screens = []
        async with pool.env() as env:
            for _ in range(2):
                results = [await env.reset(task, task.seed), await env.step(Drag(start, end))]
                if not results[-1].terminated:
                    results.append(await env.step(Wait()))
                screens.append([result.observation.screenshot for result in results])
    except FlywheelError as error:
        return PartResult(way, f"it broke the session: {error.what}")
    if screens[0] != screens[1]:
        return PartResult(way, "the same drag gave other pixels the second time")
    return PartResult(way, seen=len(set(screens[0])) > 1)


# Seeds: what a seed changes on a manifest's page: the task, nothing, or nothing that was seen.


@dataclass(frozen=True)
class SeedFinding:
    """Hold what a seed changes on a page.

    found: a summary in a few words. wrong, doubtful: as in `PageCheck`, one text; "" for nothing.
    """

    found: str
    wrong: str = ""
    doubtful: str = ""


async def try_seeds(pool: BrowserPool, manifest: PageManifest, task: Task) -> SeedFinding:
    """Find what seeds change on a page, by playing `task` with several. Raises as `compare_seeds`."""
    named = False

    async def look(env: Any) -> None:
        nonlocal named
        with contextlib.suppress(EnvError):
            named = bool(await env.tab.evaluate(f"{_PAGE_SCRIPT}.namesChance()"))

    return judge_seeds(manifest, await conformance.compare_seeds(pool.env, task, look), named)


def judge_seeds(manifest: PageManifest, seeds: SeedComparison, named: bool) -> SeedFinding:
    """Judge whether a manifest tells rightly what seeds change on its page.

    seeds: what was found by playing. named: whether the page's scripts name a source of random numbers.
    """
    if seeds.differ_at is not None:
        return SeedFinding(f"holds: another seed shows {seeds}")
    others = f"{conformance.N_OTHER_SEEDS} other seeds gave the same screens and state"
    tried = f"{others}, over {seeds.steps} steps of the same actions"
    doubtful = wrong = ""
    if seeds.drawn:
        doubtful = (
            f"{tried}, though the page drew {seeds.drawn} numbers from its seeded chance: a difference may come later. "
            "If they decide something, record it in `state`; if they do not, write seeded: false, with splits"
        )
    elif how := _find_seed_field(manifest):
        wrong = (
            f"the seed is ignored, as far as can be seen: {tried}, and no number of chance was drawn, though {how} "
            "hands it in (see that the page uses it; where it shows later, record in `state` what it decides)"
        )
    elif named:
        doubtful = (
            f"{tried}, and no number of chance was drawn, though the page's scripts name Math.random: a difference may "
            "come later. If none does, write seeded: false, with splits"
        )
    else:
        wrong = (
            "there is no chance in this page, and the manifest does not hand the seed in: every seed gives the same "
            f"task ({tried}). Write seeded: false, with splits: [eval] or [train]"
        )
    if wrong:
        return SeedFinding("does not hold", wrong=f"seeding: {wrong}")
    return SeedFinding("no difference was seen", doubtful=f"seeding: {doubtful}")


def _find_seed_field(manifest: PageManifest) -> str:
    """Find the manifest's field that hands the seed to the page; "" where there is none."""
    if not isinstance(manifest.reset, str) or re.search(r"\bseed\b", manifest.reset):
        return "reset"
    server = manifest.server.model_dump_json() if manifest.server else ""
    return "server" if "{seed}" in server else ""


# `flywheel env page try`.

ReportLine = Callable[[str, str], None]  # (title, finding), called as soon as it is known
_RANDOM_STEPS = 20


@dataclass
class PageCheck:
    """Hold what is wrong with a page, in sentences.

    wrong: what does not work; the first one is the verdict. doubtful: what works and yet may not be intended. used:
    features that the page uses whose results may vary between two runs.
    """

    wrong: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Tell whether nothing is wrong."""
        return not self.wrong


async def check_page(
    manifest: PageManifest, task: Task, settings: Settings, picture: Path | None, say: ReportLine, *, check: bool = True
) -> PageCheck:
    """Try one task of a manifest in a browser, and return what is wrong with its page.

    Opens the page's server and a browser for it, and ends both. task: of this manifest. settings: only `sandbox` is
    read. picture: PNG file for the first screen, replaced, its folders made; None: it is not saved. say: called with
    each finding's title and text. check: run the conformance suite too. Raises BadInput where nothing can be tried (no
    Chromium, packages not fetched, a missing first page or server's program, a task of another manifest), EnvError
    where its files cannot be served, OSError where `picture` cannot be written; all other faults of page and browser
    are in the result.
    """
    trial = PageCheck()
    for field_name, words in manifest.programs:
        say(field_name, words)
    async with ManifestPages({manifest.name: manifest}) as pages, BrowserPool(settings.sandbox, pages) as pool:
        try:
            async with pool.env() as env:
                try:
                    began = time.monotonic()
                    first = await env.reset(task, task.seed)
                    say("address", env.tab.url)
                    if manifest.server:
                        seconds, why = time.monotonic() - began, isolation.explain_missing_bwrap()
                        apart = f"not kept apart from this machine: {why}" if why else "kept apart by bubblewrap"
                        say("server", f"{apart}; a reset, its start included, takes {seconds:.1f} s")
                        program = ServerPrograms(manifest).find(manifest.server.command[0])
                        if not why and (unseen := ", ".join(isolation.list_unseen_settings(program))):
                            say("not seen", f"{unseen}, of the package of {program.name}: see server.reads")
                    _report_state(task, first, say, trial)
                    _check_first_screen(task, first, picture, say, trial)
                    await _play_at_random(env, task, say, trial)
                finally:
                    _report_page_errors(env, pages.missed(manifest.name), say, trial)
        except BadInput:
            raise
        except FlywheelError as error:
            trial.wrong.append(str(error))
            return trial
        if check:
            await _check_conformance(pool, manifest, task, say, trial)
    return trial


async def _check_conformance(
    pool: BrowserPool, manifest: PageManifest, task: Task, say: ReportLine, trial: PageCheck
) -> None:
    """Run the conformance suite, then the checks that only pages have: form controls, drags and other seeds."""
    checked = ConformanceCase(pool.env, dataclasses.replace(task, max_steps=max(task.max_steps, 4)))
    more = {"controls": partial(_check_controls, pool, task, trial), "drags": partial(_check_drags, pool, task, trial)}
    more |= {"other seeds": partial(_check_seeds, pool, manifest, task, trial)} if manifest.seeded else {}
    number, checks = 0, len(conformance.CLAUSES) + len(more)

    def tell(name: str, found: str) -> None:
        nonlocal number
        number += 1
        say(f"check {name}", f"{found} ({number} of {checks})")

    for name, clause in conformance.CLAUSES.items():
        try:
            await clause(checked)
        except FlywheelError as error:
            differs = isinstance(error, NotReproducible)
            may = differs and not manifest.exact
            tell(name, "differs, as exact: false says" if may else "does not hold")
            advice = _advise_on_difference(trial.used) if differs and not may else ""
            (trial.doubtful if may else trial.wrong).append(f"{name}: {error}{advice}")
        else:
            tell(name, "holds")
    for name, part in more.items():
        try:
            tell(name, await part())
        except FlywheelError as error:
            tell(name, "does not hold")
            trial.wrong.append(f"{name}: {error}")


async def _check_seeds(pool: BrowserPool, manifest: PageManifest, task: Task, trial: PageCheck) -> str:
    verdict = await try_seeds(pool, manifest, task)
    trial.wrong += [verdict.wrong] if verdict.wrong else []
    trial.doubtful += [verdict.doubtful] if verdict.doubtful else []
    return verdict.found


async def _check_controls(pool: BrowserPool, task: Task, trial: PageCheck) -> str:
    tried = await try_controls(pool, task)
    for harm in dict.fromkeys(one.wrong for one in tried if one.wrong):
        kinds = ", ".join(one.part for one in tried if one.wrong == harm)
        trial.wrong.append(f"controls: {kinds}: operating it broke the session: {harm}")
    if stuck := [one.part for one in tried if not (one.wrong or one.seen)]:
        trial.doubtful.append(f"controls: mouse and keys did not change {', '.join(stuck)}")
    return _sum_up(tried, "there is none")


async def _check_drags(pool: BrowserPool, task: Task, trial: PageCheck) -> str:
    dragged = await try_drags(pool, task)
    trial.wrong += [f"drags: {one.part}: {one.wrong}" for one in dragged if one.wrong]
    trial.doubtful += [f"drags: {one.part} changed nothing that is seen" for one in dragged if not one.seen]
    return _sum_up(dragged, "there is nothing to drag")


def _sum_up(results: Sequence[PartResult], none: str) -> str:
    if any(one.wrong for one in results):
        return "does not hold"
    return f"holds: {', '.join(one.part for one in results)}" if results else none


def _report_state(task: Task, first: StepResult, say: ReportLine, trial: PageCheck) -> None:
    state = first.info["state"]
    if dialog := state.get("dialog"):
        say("dialog", f"{dialog['kind']}: {dialog['message'][:200]}")
        trial.doubtful.append("a dialog is open at the beginning: until it is answered, nothing of the page is read")
        return
    say("instruction", state.get("instruction") or task.instruction)
    solved = "" if task.threshold == 1 else f", solved from a score of {task.threshold:g}"
    say("reward", f"{state['reward']:g} (0 is scored at {state['floor']:g}, 1 at {state['success']:g}{solved})")
    say("end", str(state["terminated"]).lower())
    for name, value in state["values"].items():
        say(f"state.{name}", str(value)[:200])


def _check_first_screen(task: Task, first: StepResult, picture: Path | None, say: ReportLine, trial: PageCheck) -> None:
    shot = first.observation
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(shot.screenshot)
        say("screen", f"{shot.width} x {shot.height}, {picture}")
    colours = Image.open(io.BytesIO(shot.screenshot)).convert("RGB").getcolors(2)
    if colours is not None and len(colours) == 1:
        trial.doubtful.append("the first screen is of one colour: give `ready`, or a longer settle_ms")
    if first.info["score"] >= task.threshold:
        trial.wrong.append("success: the task is solved before anything is done; compare reward and success")
    elif first.terminated:
        trial.wrong.append("end: it is true before anything is done; reset the page, or mend end")


async def _play_at_random(env: Any, task: Task, say: ReportLine, trial: PageCheck) -> None:
    """Play some random steps, and report whether the page stays readable and its reward changes."""
    rng = random.Random(task.task_id)
    rewards, result = [], await env.reset(dataclasses.replace(task, max_steps=_RANDOM_STEPS), task.seed)
    while not (result.terminated or result.truncated):
        result = await env.step(conformance.draw_random_action(rng))
        rewards.append(result.info["state"]["reward"])
    trial.used += await env.tab.evaluate("window.__flywheel__ ? __flywheel__.features() : []")
    if rewards:
        how = "the task's end" if result.terminated else "its budget"
        say("random play", f"{len(rewards)} steps to {how}, reward {min(rewards):g} to {max(rewards):g}")
    unread = result.info["state"].get("unread", {})
    for fault in dict.fromkeys(unread.values()):
        fields = ", ".join(field for field in unread if unread[field] == fault)
        trial.doubtful.append(f"{fields}: not read on page {result.info['state']['page']!r}: {fault}")


def _report_page_errors(env: Any, missed: list[str], say: ReportLine, trial: PageCheck) -> None:
    """Report errors in the page itself: they are not always harmful, but mostly the cause of what is wrong."""
    for path in dict.fromkeys(missed):
        if not path.endswith("/favicon.ico"):
            say("not there", f"{path} was asked for; name an alias, or put it into the folder")
    for fault in list(dict.fromkeys(env.tab.notes.faults))[:10]:
        say("page says", fault)


def _advise_on_difference(used: list[str]) -> str:
    """Advise on screens that differ between two runs. used: features of the page that may cause that."""
    if used:
        return f" (the page uses what may differ from time to time: {'; '.join(used)})"
    return (
        " (is something kept outside of what reset resets, or does the server answer otherwise each time? Where a "
        "server's own time is to show, write exact: false)"
    )
