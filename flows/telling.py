"""What a run says of its progress, in Prefect's log too, where whoever watches its page sees it move."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from prefect import get_run_logger

from flywheel.progress import Told, heard_by

_EVERY_S = 10  # of what moves; what is told, what is done, the beginning and the end are there always


@contextlib.contextmanager
def to_prefect() -> Iterator[None]:
    """Within the block, of a flow, its run's log has the lines of progress."""
    log, last = get_run_logger(), float("-inf")

    def line(stage: str, text: str) -> None:
        nonlocal last
        matters = isinstance(text, Told) or text == "begins" or text.startswith("ended") or text.endswith(" done")
        now = time.monotonic()
        if matters or now - last >= _EVERY_S:
            last = now
            log.info("%s: %s", stage, text)

    with heard_by(line):
        yield
