"""Show a run's progress in Prefect: lines in its log, and a bar among its artifacts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectHTTPStatusError

from flywheel.config.workspace import iteration_label
from flywheel.pipeline.stage import StageContext
from flywheel.utils.processes import run_periodically
from flywheel.utils.progress import Announcement, ShardProgress, add_listener

# Progress lines of a run, in Prefect's log too, for whoever watches its page.

_LOG_EVERY_S = 10  # for lines that replace one another; announcements, the beginning and the end are always logged


@contextlib.contextmanager
def log_progress_to_prefect() -> Iterator[None]:
    """Log progress lines to the run's log in Prefect within the block."""
    log, last = get_run_logger(), float("-inf")

    def line(stage: str, text: str) -> None:
        nonlocal last
        matters = (
            isinstance(text, Announcement) or text == "begins" or text.startswith("ended") or text.endswith(" done")
        )
        now = time.monotonic()
        if matters or now - last >= _LOG_EVERY_S:
            last = now
            log.info("%s: %s", stage, text)

    with add_listener(line):
        yield


# How far a stage is, as a bar among its run's artifacts in Prefect.

_BAR_EVERY_S = 10.0  # a stage that takes less has no bar


@contextlib.contextmanager
def show_progress_bar(ctx: StageContext, shards: Sequence[str], every_s: float = _BAR_EVERY_S) -> Iterator[None]:
    """Show the progress of a stage's shards as a bar within the block.

    One that fails or is killed stays where it was; one that ends is full.
    """
    run = FlowRunContext.get()
    if run is None:
        yield
        return
    bar = _ProgressBar(ctx, shards, run.flow_run.id)
    with add_listener(bar.hear), run_periodically(bar.show, every_s):
        yield
    bar.end()


class _ProgressBar:
    def __init__(self, ctx: StageContext, shards: Sequence[str], run_id: UUID) -> None:
        self._stage, self._run_id = ctx.stage, run_id
        self._key, self._about = f"{ctx.stage}-progress".lower(), f"{iteration_label(ctx.iteration)} {ctx.stage}"
        self._shares = dict.fromkeys(shards, 0.0)
        self._shown, self._artifact = 0.0, None

    def hear(self, stage: str, line: str) -> None:
        """Called by whatever thread is at work; it only remembers."""
        if stage == self._stage and isinstance(line, ShardProgress) and line.shard in self._shares:
            self._shares[line.shard] = line.share

    def show(self) -> None:
        """A server that is away for a moment is no reason to stop: the next look shows it."""
        share = sum(self._shares.values()) / max(1, len(self._shares))
        if self._artifact is not None and share == self._shown:
            return
        with contextlib.suppress(httpx.HTTPError, PrefectHTTPStatusError), get_client(sync_client=True) as client:
            self._send(client, round(100 * share, 1))
            self._shown = share

    def end(self) -> None:
        if self._artifact is not None:
            self._shares = dict.fromkeys(self._shares, 1.0)
            self.show()

    def _send(self, client, percent: float) -> None:
        if self._artifact is None:
            made = ArtifactCreate(
                key=self._key, type="progress", description=self._about, data=percent, flow_run_id=self._run_id
            )
            self._artifact = client.create_artifact(made).id
        else:
            client.update_artifact(self._artifact, ArtifactUpdate(data=percent))
