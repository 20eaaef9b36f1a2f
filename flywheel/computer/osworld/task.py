"""A task of OSWorld's as it is played here: what a task's params hold of it, with the bytes of all files it needs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flywheel.computer.checker import Name


class Metric(BaseModel):
    """func: one of `metrics`. result and expected: one entry, which says what to look for. `value`: as it is; `command`
    with `shell` and `stream`: what it prints; `file`, `files`, `tree`: paths from the home; `gold`, `golds`: names in
    `gold`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    func: str
    result: dict[str, Any]
    expected: dict[str, Any]
    options: dict[str, Any]


class OsworldTask(BaseModel):
    """steps: of the set-up, in OSWorld's own form; files that it would download are `upload`s, with their `content` as
    base64. after: the same, once the agent has ended. metrics: what judges; none where the task cannot be done, which
    the agent is to say. conj: how they are joined. gold: files that results are compared with, base64 by name. seconds:
    for the set-up, and for all that judges, beyond the limit of any call."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    steps: list[dict[str, Any]] = []
    after: list[dict[str, Any]] = []
    metrics: list[Metric] = []
    conj: Literal["and", "or"] = "and"
    gold: dict[Name, str] = {}
    seconds: float = Field(15.0, gt=0, le=3600)
