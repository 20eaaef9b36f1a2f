"""Declare a step and a trajectory: the rows of the tables `steps` and `trajectories`.

`Step` and `Trajectory` declare the tables `steps` and `trajectories`, a field a column (`schema.TABLES`): what the
rollout records is what scorers judge and what training learns from. None: unknown, or without meaning for this kind of
step. A new column is a field, a line where it is filled, and a step of `flywheel workspace migrate`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime

NO_COLUMN = {"column": False}
"""Metadata of a field that no table holds."""


@dataclass(frozen=True)
class Step:
    """One step: what was seen (by its hash), thought, done, and what followed."""

    trajectory_id: str
    step: int
    author: str
    """model or human"""
    thought: str | None = None
    action_type: str | None = None
    """The action's name in the grammar; None where the text held no action."""
    action: str | None = None
    """Serialised in the policy's grammar."""
    raw_text: str | None = None
    parse_error: str | None = None
    """Why the text held no action; None where it did."""
    x: float | None = None
    """Points of the action, as fractions of the screen; x2, y2: where a drag ends."""
    y: float | None = None
    x2: float | None = None
    y2: float | None = None
    prompt_tokens: int | None = None
    token_ids: tuple[int, ...] | None = None
    """As sampled, the end token included where it was; None for a human."""
    logprobs: tuple[float, ...] | None = None
    """Of each token as sampled, at temperature 1."""
    weight_version: str | None = None
    image_sha256: str | None = None
    """Of the screen that the action was chosen on; None where there was none to see."""
    url: str | None = None
    tool_result: str | None = None
    """What an SDK function returned, or what the environment remarked."""
    reward: float | None = None
    terminated: bool | None = None
    """An end of the task; truncated: a limit."""
    truncated: bool | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    memory: str | None = None
    """JSON of the digest of older steps that was shown: steps, text, by."""
    observation: str | None = None
    """What was there to read, where the action was chosen; None where the screen was all."""

    misclick: bool | None = None
    """Whether a person clicked on nothing, and nothing changed: later prompts show it, and imitation leaves it out."""

    state_score: float | None = None
    """Of the state that the action was chosen on, 0 to 1; None where nothing is known of one before the end."""

    # What no table holds: RL reads it from the episode, and forgets it with the batch.
    sampled_logprobs: tuple[float, ...] = field(default=(), metadata=NO_COLUMN)
    """Of each token at the temperature that it was sampled at, where the policy says so."""
    version: int | None = field(default=None, metadata=NO_COLUMN)
    """How many training steps the weights had had that sampled it, in the RL run that the episode is of."""


@dataclass(frozen=True)
class Trajectory:
    """One episode's row: of which task it is, who acted, how it ended."""

    trajectory_id: str
    task_id: str
    domain: str
    world: str | None = None
    level: int | None = None
    instruction: str | None = None
    source: str | None = None
    """rollout, recording, annotation or import (another data set's)"""
    author: str | None = None
    """model or human"""
    sample: int | None = None
    """Its number among the episodes of its task and weights."""
    policy_version: str | None = None
    """Digest of the weights that began it."""
    status: str | None = None
    """completed (terminated), truncated (a limit), crashed, invalid"""
    error: str | None = None
    steps: int | None = None
    """How many there are."""
    reward: float | None = None
    """Sum over the steps."""
    final_state: str | None = None
    """JSON, which the verifier reads; None where the environment crashed."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    run_id: str | None = None
    """The flow run that paid for it."""
    origin: str | None = None
    """Of an imported one: data set and id there, with a colon between."""
    licence: str | None = None
    """Of an imported one: what its data set may be used for, as an SPDX id or as its publisher calls it."""


def make_trajectory_id(iteration: int, task_id: str, sample: int, policy_version: str) -> str:
    """Name a trajectory by where it comes from: `t` and 19 hex digits of a hash of the arguments.

    A resumed run makes the same names, and neither loses nor repeats one. iteration, task_id: played. sample: number of
    the attempt at the task. policy_version: digest of the weights.
    """
    text = f"{iteration}|{task_id}|{sample}|{policy_version}"
    return "t" + hashlib.sha256(text.encode()).hexdigest()[:19]


def session_trajectory_id(iteration: int, task_id: str, session: str) -> str:
    """Name the trajectory that a person's session becomes in an iteration, in the form of `make_trajectory_id`.

    task_id: of its task. session: its folder's name.
    """
    return make_trajectory_id(iteration, task_id, 0, f"human-{session}")
