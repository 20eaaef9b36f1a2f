"""`flywheel page try`: a manifest's page opened, read, played at random and checked, and what is wrong."""

from __future__ import annotations

import dataclasses
import io
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from flywheel.agent.actions import Action, Click, Drag, Hotkey, Point, Type, Wait
from flywheel.errors import BadInput, FlywheelError
from flywheel.sandbox.check import CLAUSES, Checked
from flywheel.sandbox.env import StepResult, Task
from flywheel.sandbox.manifests import Manifest
from flywheel.sandbox.pages import ManifestPages
from flywheel.sandbox.pool import BrowserPool
from flywheel.settings import Settings

Say = Callable[[str, str], None]  # (what, found), as soon as it is known
_RANDOM_STEPS = 20
_KEYS = ("left", "right", "up", "down", "space", "enter", "a")


@dataclass
class Trial:
    """wrong: what does not work, the first being the verdict. doubtful: what works and yet may not be meant."""

    wrong: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.wrong


async def try_page(
    manifest: Manifest, task: Task, settings: Settings, picture: Path | None, say: Say, *, check: bool = True
) -> Trial:
    """Try one task of a manifest. picture: a file for the first screen.

    Raises BadInput where there is nothing to try (packages not fetched, a first page that is not there), EnvError
    where no browser starts; whatever the page does is told in the Trial.
    """
    trial = Trial()
    async with ManifestPages({manifest.name: manifest}) as pages, BrowserPool(settings.sandbox, pages) as pool:
        say("address", pages.open(task, task.seed).url)
        try:
            async with pool.env() as env:
                try:
                    first = await env.reset(task, task.seed)
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
            checked = Checked(pool.env, dataclasses.replace(task, max_steps=max(task.max_steps, 4)), manifest.seeded)
            for name, clause in CLAUSES.items():
                try:
                    await clause(checked)
                except FlywheelError as error:
                    say(f"check {name}", "does not hold")
                    trial.wrong.append(f"{name}: {error}{_advice(str(error))}")
                else:
                    say(f"check {name}", "holds")
    return trial


def _tell(manifest: Manifest, first: StepResult, say: Say) -> None:
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
        result = await env.step(_draw(rng))
        rewards.append(result.info["state"]["reward"])
    if rewards:
        how = "the task's end" if result.terminated else "its budget"
        say("random play", f"{len(rewards)} steps to {how}, reward {min(rewards):g} to {max(rewards):g}")
    for name, fault in result.info["state"].get("unread", {}).items():
        trial.doubtful.append(f"{name} could not be read on page {result.info['state']['page']!r}: {fault}")


def _draw(rng: random.Random) -> Action:
    points = [Point(rng.random(), rng.random()) for _ in range(2)]
    kinds = (Click(points[0]), Click(points[1]), Drag(*points), Hotkey((rng.choice(_KEYS),)), Type("12"), Wait())
    return rng.choice(kinds)


def _hear(env: Any, missed: list[str], say: Say, trial: Trial) -> None:
    """What went wrong in the page itself: not always harmful, but mostly the cause where something is."""
    for path in dict.fromkeys(missed):
        if not path.endswith("/favicon.ico"):
            say("not there", f"{path} was asked for; name an alias, or put it into the folder")
    for fault in list(dict.fromkeys(getattr(getattr(env, "tab", None), "faults", ())))[:10]:
        say("page says", fault)


def _advice(error: str) -> str:
    if "gave other pixels" in error or "gave another result" in error:
        return " (is something drawn from a worker, a video or the network, or kept outside of what reset resets?)"
    if "other seeds all gave the same task" in error:
        return " (write seeded: false, with splits, or let reset use seed)"
    return ""
