"""The environment contract. Every back-end passes `flywheel.sandbox.check.check_env`, a fake included.

An `Env` is one session: reset to a task, stepped to its end, reset again or closed. `terminated` is an end of the
task, `truncated` a limit (the step budget); a crash is an `EnvError`, never a reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from flywheel.agent.actions import Action

INTERFACES = ("gui", "sdk", "both")  # the screen alone, functions alone, either


@dataclass(frozen=True)
class Task:
    """One row of the table `tasks`: what is asked, in which world, and how it is verified.

    params: the template's parameters, JSON values. threshold: V = 1 where the score reaches it (`reward.verdict`).
    max_steps: the step budget; the env truncates after it. environment: the kind that it is played in
    (`flywheel.environments.kind`); all tasks of earlier versions were played in browsers.
    """

    task_id: str
    domain: str
    world: str
    template: str
    level: int
    seed: int
    instruction: str
    params: Mapping[str, Any]
    max_steps: int
    split: str
    verifier: str
    threshold: float
    checksum: str
    environment: str = "browser"

    @property
    def interface(self) -> str:
        """The ways that it may be done in, where its params say so (`allowed`): gui, sdk or both; else ""."""
        allowed = self.params.get("allowed", "")
        return allowed if allowed in INTERFACES else ""


@dataclass(frozen=True)
class Observation:
    """What the agent sees: a picture, a text, or both.

    screenshot: a PNG of width x height pixels; None, 0 x 0, where there is no picture. text: what is there to read,
    such as a terminal's screen; "" where the picture is all.
    """

    screenshot: bytes | None
    width: int = 0
    height: int = 0
    url: str = ""
    text: str = ""


@dataclass(frozen=True)
class StepResult:
    """reward: of this step alone. info: `state` (what the verifier reads, JSON values), `score` (the state's, 0 to 1),
    `note` (a defined no-op), `result` (what an SDK function returned)."""

    observation: Observation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class Env(Protocol):
    """Every call has a deadline and raises EnvError (crash) or EnvTimeout, after which only `close` is allowed."""

    async def reset(self, task: Task, seed: int) -> StepResult:
        """A fresh session of the task. The same task and seed give the same observations."""

    async def step(self, action: Action) -> StepResult:
        """Carry out one action. One that does not exist here, or lies outside, is a no-op, said in `info["note"]`."""

    async def close(self) -> None:
        """Free everything; may be called twice."""


@runtime_checkable
class Checkpointable(Protocol):
    """An `Env` whose state can be kept and brought back, where its kind offers that."""

    async def checkpoint(self) -> bytes:
        """A state that `restore` brings back."""

    async def restore(self, checkpoint: bytes) -> StepResult:
        """Back to a checkpoint of this task: what follows is the same as what followed it."""


@runtime_checkable
class Keepable(Protocol):
    """An `Env` of which a part can be kept: not all that is at work in it can. What is brought back is a fresh session
    with that part, at the same step; `info["lost"]` says line by line what else there had been."""

    async def keep(self) -> bytes:
        """The part that `bring_back` takes. What is at work goes on."""

    async def bring_back(self, kept: bytes) -> StepResult:
        """Go on from what was kept of this task."""
