"""`flywheel page try`: a manifest's page opened, read, played at random and checked, and what is wrong."""

from __future__ import annotations

import dataclasses
import io
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from flywheel.environments.env import StepResult, Task
from flywheel.errors import BadInput, FlywheelError
from flywheel.sandbox import isolation
from flywheel.sandbox.check import CLAUSES, Checked, Differs
from flywheel.sandbox.check_seeds import draw
from flywheel.sandbox.manifests import PageManifest
from flywheel.sandbox.pages import ManifestPages
from flywheel.sandbox.pool import BrowserPool
from flywheel.sandbox.trial_controls import try_controls
from flywheel.sandbox.trial_drags import try_drags
from flywheel.sandbox.trial_seeds import try_seeds
from flywheel.settings import Settings

Say = Callable[[str, str], None]  # (what, found), as soon as it is known
_RANDOM_STEPS = 20


@dataclass
class Trial:
    """wrong: what does not work, the first being the verdict. doubtful: what works and yet may not be meant."""

    wrong: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)  # what the page uses that may differ from time to time

    @property
    def ok(self) -> bool:
        return not self.wrong


async def try_page(
    manifest: PageManifest, task: Task, settings: Settings, picture: Path | None, say: Say, *, check: bool = True
) -> Trial:
    """Try one task of a manifest. picture: a file for the first screen.

    Raises BadInput where there is nothing to try (packages not fetched, a first page that is not there), EnvError
    where no browser starts; whatever the page does is told in the Trial.
    """
    trial = Trial()
    async with ManifestPages({manifest.name: manifest}) as pages, BrowserPool(settings.sandbox, pages) as pool:
        try:
            async with pool.env() as env:
                try:
                    began = time.monotonic()
                    first = await env.reset(task, task.seed)
                    say("address", env.tab.url)
                    if manifest.server:
                        say(
                            "server", f"{_apart()}; a reset, its start included, takes {time.monotonic() - began:.1f} s"
                        )
                    _tell(manifest, first, say)
                    _see(first, picture, say, trial)
                    await _play(env, task, say, trial)
                finally:
                    _hear(env, pages.missed(manifest.name), say, trial)
        except BadInput:
            raise
        except FlywheelError as error:
            trial.wrong.append(str(error))
            return trial
        if check:
            await _check(pool, manifest, task, say, trial)
    return trial


async def _check(pool: BrowserPool, manifest: PageManifest, task: Task, say: Say, trial: Trial) -> None:
    """The conformance suite, then what only a page has: seeds by their own words, form controls, drags."""
    checked = Checked(pool.env, dataclasses.replace(task, max_steps=max(task.max_steps, 4)))
    for name, clause in CLAUSES.items():
        try:
            await clause(checked)
        except FlywheelError as error:
            differs = isinstance(error, Differs)
            may = differs and not manifest.exact
            say(f"check {name}", "differs, as exact: false says" if may else "does not hold")
            (trial.doubtful if may else trial.wrong).append(
                f"{name}: {error}{_advice(trial.used) if differs and not may else ''}"
            )
        else:
            say(f"check {name}", "holds")
    more = {"controls": _controls, "drags": _drags} | ({"other seeds": _seeds} if manifest.seeded else {})
    for name, part in more.items():
        try:
            say(f"check {name}", await part(pool, manifest, task, trial))
        except FlywheelError as error:
            say(f"check {name}", "does not hold")
            trial.wrong.append(f"{name}: {error}")


async def _seeds(pool: BrowserPool, manifest: PageManifest, task: Task, trial: Trial) -> str:
    verdict = await try_seeds(pool, manifest, task)
    trial.wrong += [verdict.wrong] if verdict.wrong else []
    trial.doubtful += [verdict.doubtful] if verdict.doubtful else []
    return verdict.found


async def _controls(pool: BrowserPool, manifest: PageManifest, task: Task, trial: Trial) -> str:
    tried = await try_controls(pool, task)
    for harm in dict.fromkeys(one.harm for one in tried if one.harm):
        kinds = ", ".join(one.kind for one in tried if one.harm == harm)
        trial.wrong.append(f"controls: {kinds}: operating it broke the session: {harm}")
    if stuck := [one.kind for one in tried if not (one.harm or one.changed)]:
        trial.doubtful.append(f"controls: mouse and keys did not change {', '.join(stuck)}")
    if any(one.harm for one in tried):
        return "does not hold"
    return f"holds: {', '.join(one.kind for one in tried)}" if tried else "there is none"


async def _drags(pool: BrowserPool, manifest: PageManifest, task: Task, trial: Trial) -> str:
    dragged = await try_drags(pool, task)
    trial.wrong += [f"drags: {one.way}: {one.wrong}" for one in dragged if one.wrong]
    trial.doubtful += [f"drags: {one.way} changed nothing that is seen" for one in dragged if not one.seen]
    if any(one.wrong for one in dragged):
        return "does not hold"
    return f"holds: {', '.join(one.way for one in dragged)}" if dragged else "there is nothing to drag"


def _apart() -> str:
    why = isolation.missing()
    return f"not kept apart from this machine: {why}" if why else "kept apart by bubblewrap"


def _tell(manifest: PageManifest, first: StepResult, say: Say) -> None:
    state = first.info["state"]
    say("instruction", state.get("instruction") or manifest.instruct(manifest.variants[0]))
    say("reward", f"{state['reward']:g} (0 is scored at {state['floor']:g}, 1 at {state['success']:g})")
    say("end", str(state["terminated"]).lower())
    for name, value in state["values"].items():
        say(f"state.{name}", str(value)[:200])


def _see(first: StepResult, picture: Path | None, say: Say, trial: Trial) -> None:
    shot = first.observation
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(shot.screenshot)
        say("screen", f"{shot.width} x {shot.height}, {picture}")
    colours = Image.open(io.BytesIO(shot.screenshot)).convert("RGB").getcolors(2)
    if colours is not None and len(colours) == 1:
        trial.doubtful.append("the first screen is of one colour: give `ready`, or a longer settle_ms")
    if first.info["score"] >= 1:
        trial.wrong.append("success: the task is solved before anything is done; compare reward and success")
    elif first.terminated:
        trial.wrong.append("end: it is true before anything is done; reset the page, or mend end")


async def _play(env: Any, task: Task, say: Say, trial: Trial) -> None:
    """Some random steps: does the page stay readable, does its reward move?"""
    rng = random.Random(task.task_id)
    rewards, result = [], await env.reset(dataclasses.replace(task, max_steps=_RANDOM_STEPS), task.seed)
    while not (result.terminated or result.truncated):
        result = await env.step(draw(rng))
        rewards.append(result.info["state"]["reward"])
    trial.used += await env.tab.evaluate("window.__flywheel__ ? __flywheel__.features() : []")
    if rewards:
        how = "the task's end" if result.terminated else "its budget"
        say("random play", f"{len(rewards)} steps to {how}, reward {min(rewards):g} to {max(rewards):g}")
    unread = result.info["state"].get("unread", {})
    for fault in dict.fromkeys(unread.values()):
        fields = ", ".join(field for field in unread if unread[field] == fault)
        trial.doubtful.append(f"{fields}: not read on page {result.info['state']['page']!r}: {fault}")


def _hear(env: Any, missed: list[str], say: Say, trial: Trial) -> None:
    """What went wrong in the page itself: not always harmful, but mostly the cause where something is."""
    for path in dict.fromkeys(missed):
        if not path.endswith("/favicon.ico"):
            say("not there", f"{path} was asked for; name an alias, or put it into the folder")
    for fault in list(dict.fromkeys(getattr(getattr(env, "tab", None), "faults", ())))[:10]:
        say("page says", fault)


def _advice(used: list[str]) -> str:
    """What may be behind screens that differ; used: what the page uses that may."""
    if used:
        return f" (the page uses what may differ from time to time: {'; '.join(used)})"
    return (
        " (is something kept outside of what reset resets, or does the server answer otherwise each time? Where a "
        "server's own time is to show, write exact: false)"
    )
