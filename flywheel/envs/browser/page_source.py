"""Define where a task's page comes from: a `PageSource` opens a fresh `PageSession` at each reset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flywheel.envs.base import Task


@dataclass(frozen=True)
class LoginSteps:
    """Hold how a session logs in before its first page is shown.

    cookies, headers: what the browser sends; headers go to the first page's origin alone. address: URL of the login
    page ("": the first page). script: JavaScript run there ("": no login). done: JavaScript run on the first page
    afterwards, which ends once the login has worked ("": not checked).
    """

    cookies: tuple[Mapping[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    script: str = ""
    done: str = ""


class PageSession(Protocol):
    """Hold one fresh session of a task: which page a tab opens for it, and how its end is read and scored.

    url: address of its first page. allowed: prefixes of addresses that navigation may not leave; the network that its
    pages reach is their origins alone. viewport: width and height in pixels; None: the settings'. step_ms: page time of
    a step in ms; None: the settings'. prepare: JavaScript statements run once after the load ("": none); a promise that
    they return is awaited. state_expression: JavaScript whose value is `seen["game"]`; "": `window.__env__.getState()`
    where it exists. restorable: the page's `window.__env__.setState` restores all that matters, so that a checkpoint
    needs no replay. files: a folder whose files may be uploaded to the page, besides the session's downloads; None:
    only those. Third-party pages may also have `backend`, the session's own server, and `entry`, a login. Sessions of
    our own suites have `first_party`, which is true: their pages run no code but ours, load nothing, keep nothing
    outside of their documents, and heed no mouse that rests at their top left corner.
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
        """Return the state that the verifier reads, from what a tab has observed; {} where there is none.

        seen: as `BrowserTab.observe` returns it: `game`, `elements`, `url`. Raises EnvError where it cannot be read.
        """

    def score(self, state: Mapping[str, Any]) -> float:
        """Score `state`, from the method of that name, by the task's verifier, 0 to 1.

        Raises DataError where the verifier cannot read it.
        """

    def save_server_state(self) -> bytes:
        """Return the state that the session has on its server, for a checkpoint; b"" where it has none."""

    def restore_server_state(self, kept: bytes) -> None:
        """Restore the state that the session has on its server. kept: from `save_server_state`."""

    def close(self) -> None:
        """Free the session; may be called twice."""


class PageSource(Protocol):
    """Open sessions of tasks: the server of our suites, of the phone, or of third-party pages."""

    def open(self, task: Task, seed: int) -> PageSession:
        """Open a fresh session of `task`. seed: of the reset. Raises BadInput for a suite that it does not have."""
