"""A run pauses until a form is filled in: by a person on the run's page, or elsewhere in a person's stead."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import httpx
from prefect import pause_flow_run
from prefect.client.orchestration import get_client
from prefect.exceptions import FlowPauseTimeout, PrefectException
from prefect.input import RunInput
from prefect.runtime import flow_run

from flows.beside import looking
from flywheel.errors import FlywheelError

_POLL_S = 2
_GRACE_S = 60  # after the deadline, for the answer to arrive that nobody answered


class Unanswered(FlywheelError):
    """Nobody filled in the form in time, and that is to be an error."""


def ask(
    form: type[RunInput],
    key: str,
    *,
    timeout_s: float,
    unanswered: Literal["keep", "fail"],
    elsewhere: Callable[[bool], dict[str, Any] | None],
) -> Any:
    """Pause this flow until the form is filled in, and return it.

    elsewhere: asked every two seconds while the run is paused, with whether the deadline has passed; what it returns
    fills in the form, None does not. Raises Unanswered after `timeout_s` seconds where `unanswered` is fail; where it
    is keep, `elsewhere` has to answer by then: a run whose pause ends by itself could only fail.
    """
    longest = timeout_s + (_GRACE_S if unanswered == "keep" else 0)
    try:
        with _answered(elsewhere, time.monotonic() + timeout_s):
            return pause_flow_run(wait_for_input=form, timeout=int(longest), poll_interval=_POLL_S, key=key)
    except FlowPauseTimeout:
        raise Unanswered(f"nobody answered in {timeout_s:g} s") from None


@contextlib.contextmanager
def _answered(elsewhere: Callable[[bool], dict[str, Any] | None], deadline: float) -> Iterator[None]:
    run_id = flow_run.id

    def look() -> None:
        # Prefect rejects answers until it has the form's schema; a file half written is read the next time.
        with contextlib.suppress(FlywheelError, httpx.HTTPError, PrefectException):
            if (answer := elsewhere(time.monotonic() > deadline)) is not None:
                with get_client(sync_client=True) as client:
                    client.resume_flow_run(run_id, run_input=answer)

    with looking(look, _POLL_S):
        yield
