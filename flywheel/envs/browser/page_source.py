"""Define where a task's page comes from: a `PageSource` opens one fresh `PageSession` a reset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flywheel.envs.base import Task


@dataclass(frozen=True)
class LoginSteps:
    """How a session logs in before its first page.

    cookies, headers: what the browser sends. address: the page to log in on ("": the first one). script: JavaScript run
    there ("": nobody logs in). done: JavaScript run on the first page then, which ends once one is logged in ("": not
    asked).
    """

    cookies: tuple[Mapping[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    script: str = ""
    done: str = ""


class PageSession(Protocol):
    """One fresh session of a task.

    url: address of its first page. allowed: prefixes of addresses that navigation may not leave; their origins are all
    of the network that its pages reach. viewport: width and height in pixels; None: the settings'. step_ms: page time
    of a step in ms; None: the settings'. prepare: JavaScript statements run once after the load ("": none); a promise
    that they return is waited for. state_expression: JavaScript whose value is `seen["game"]`; "":
    `window.__env__.getState()` where there is one. restorable: the page's `window.__env__.setState` brings back all
    that matters, so that a checkpoint needs no replay. files: a folder whose files the page may be given; None: it gets
    what it downloaded alone. Third-party pages may also have `backend`, a server of the session's own, and `entry`, a
    login.
    """

    url: str
    allowed: tuple[str, ...]
    viewport: tuple[int, int] | None
    step_ms: int | None
    prepare: str
    state_expression: str
    restorable: bool
    files: Path | None

    def state(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Read the verifier's state from what the page told (`seen`: `game`, `elements`, `url`); {}: there is none.

        Raises EnvError where it cannot be read.
        """

    def score(self, state: Mapping[str, Any]) -> float:
        """Score such a state by the task's verifier, 0 to 1. Raises DataError where it cannot be read."""

    def save_server_state(self) -> bytes:
        """Save the state of the session at its server, for a checkpoint."""

    def restore_server_state(self, kept: bytes) -> None:
        """Bring the session at its server back to what it was. kept: by `save_server_state`."""

    def close(self) -> None:
        """Free it; may be called twice."""


class PageSource(Protocol):
    """Opens the pages of tasks."""

    def open(self, task: Task, seed: int) -> PageSession:
        """Open a fresh session of `task`. seed: of its reset. Raises BadInput for a suite that it does not have."""
