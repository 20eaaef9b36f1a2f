"""Show a run's progress in Prefect (log lines, a bar among its artifacts), and record it for `flywheel status`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectHTTPStatusError

from flywheel.config import run_lock
from flywheel.config.workspace import iteration_label
from flywheel.pipeline.stage import StageContext
from flywheel.utils.errors import DiskFull
from flywheel.utils.processes import run_periodically
from flywheel.utils.progress import Announcement, ShardProgress, add_listener

# What a stage is doing, for whoever asks in another process.

_RECORD_EVERY_S = 1.0


class StageRecorder:
    """Record what the stage of `ctx` is doing, in `.flywheel/at_work` (`flywheel.config.run_lock`)."""

    def __init__(self, ctx: StageContext) -> None:
        self._ws, self._now = ctx.ws, run_lock.StageAtWork(ctx.stage, time.time())
        self._shares: dict[str, float] = {}
        self._written, self._one = float("-inf"), threading.Lock()

    def plan(self, shards: Sequence[str]) -> None:
        """Set the names of the shards over which the share of the stage is counted, all of the same weight."""
        self._shares = dict.fromkeys(shards, 0.0)

    def hear(self, stage: str, line: str) -> None:
        """Take a progress line of `stage`, as a listener, from any thread; lines of other stages are left out.

        It is recorded at most once a second; a full disk is no error here.
        """
        if stage != self._now.stage:
            return
        if isinstance(line, ShardProgress) and line.shard in self._shares:
            self._shares[line.shard] = line.share
        now = time.monotonic()
        with self._one:
            self._now = replace(self._now, line=str(line), share=self._share())
            if now - self._written >= _RECORD_EVERY_S:
                self._written = now
                with contextlib.suppress(DiskFull):  # the stage's own writes report it better
                    run_lock.record_stage_at_work(self._ws, self._now)

    def _share(self) -> float:
        return sum(self._shares.values()) / max(1, len(self._shares))

    def record(self, **facts: object) -> None:
        """Record new values of fields of `StageAtWork` at once. Raises DiskFull."""
        with self._one:
            self._now = replace(self._now, **facts)
            run_lock.record_stage_at_work(self._ws, self._now)

    @contextlib.contextmanager
    def wait_for(self, whom: str, answer: str) -> Iterator[None]:
        """Record that the stage waits for people within the block. whom: in words. answer: command for them to type."""
        self.record(waits_for=whom, waits_since=time.time(), answer=answer)
        try:
            yield
        finally:
            self.record(waits_for="", waits_since=None, answer="", began=time.time())


@contextlib.contextmanager
def track_stage(ctx: StageContext) -> Iterator[StageRecorder]:
    """Record what the stage of `ctx` is doing within the block, by its progress lines; yield its recorder.

    Where the stage fails, the last record stays. Raises DiskFull.
    """
    recorder = StageRecorder(ctx)
    recorder.record()
    with add_listener(recorder.hear):
        yield recorder
    recorder.record(ended=time.time(), share=1.0)


# Progress lines of a run, in Prefect's log too, for whoever watches its page.

_LOG_EVERY_S = 10  # for lines that replace one another; announcements, the beginning and the end are always logged


@contextlib.contextmanager
def log_progress_to_prefect() -> Iterator[None]:
    """Log progress lines to the flow run's log in Prefect within the block.

    Announcements, beginnings and ends are all logged, other lines at most every ten seconds. Raises prefect's
    MissingContextError outside of a run.
    """
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
    """Show the progress of a stage's shards as a bar within the block; without a flow run there is none.

    ctx: of the stage. shards: their names. every_s: seconds between two updates; a stage that takes less has no bar.
    Where a stage fails or is killed its bar stays where it was; at the end of the block it is full.
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
        """Store the share of a shard, from any thread."""
        if stage == self._stage and isinstance(line, ShardProgress) and line.shard in self._shares:
            self._shares[line.shard] = line.share

    def show(self) -> None:
        """Send the share to Prefect. Where the server does not answer, the next call sends it."""
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
