"""The stages of an iteration: each once what it reads is written, as many at once as `cluster.stages_at_once` allows.

One that has nothing beside it runs in this process, as all do where one runs at a time: a process of its own takes
seconds to begin. Those beside others are processes of their own (`flows/apart.py`).
"""

from __future__ import annotations

import time
from collections import Counter
from graphlib import TopologicalSorter

from prefect import tags
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from flows import apart, route_review
from flows.stage import stage
from flywheel.errors import FlywheelError, WorkerLost
from flywheel.progress import report, tell
from flywheel.settings import Settings
from flywheel.store import frozen, pipeline, versioning
from flywheel.workspace import Workspace, label
from tasks import tags as named

_LOOK_S = 1.0


class Stages:
    """Those of one iteration. now: the workspace's settings, of which `cluster` and `operations` are taken."""

    def __init__(self, ws: Workspace, k: int, now: Settings) -> None:
        self._ws, self._k, self._own, self._now = ws, k, frozen.load(ws, k), now
        self._at_work: list[apart.Apart] = []
        self._failure: FlywheelError | None = None
        self._lost = Counter[str]()  # how often a stage's process died

    def run(self, until: str | None) -> None:
        """Up to that one, or all. What was done before is passed over.

        Raises what a stage raised. Those beside it go on to their end, nothing new begins, and the first error counts.
        """
        domains = list(self._own.synthesis.domains)
        names = pipeline.until(until, domains)
        graph = TopologicalSorter(pipeline.writers(names, domains))
        graph.prepare()
        ready: list[str] = []
        apart.clear(self._ws)
        try:
            while graph.is_active():
                ready = sorted((*ready, *graph.get_ready()), key=names.index)
                if ready and not self._failure and len(self._at_work) < self._now.cluster.stages_at_once:
                    name = ready.pop(0)
                    if self._is_done(name, alone=not ready and not self._at_work):
                        graph.done(name)
                elif self._at_work:
                    graph.done(*self._ended())
                else:
                    raise self._failure
        finally:
            self._give_up()

    def _is_done(self, name: str, *, alone: bool) -> bool:
        """It was done before, or is done here and now; else it is asked for. alone: nothing could run beside it."""
        if versioning.is_done(self._ws, name, self._k):
            report(name, "was done before")
            return True
        longest_s = self._now.operations.stage_timeout_s
        longest_s += self._own.promotion.review_timeout_s if name == "promote" else 0
        longest_s += route_review.may_wait_s(self._own.routing, name)
        if alone or self._now.cluster.stages_at_once == 1:
            # The iteration has a heartbeat; ended with its thread, each stage would wait for a second.
            with tags(named.stage(name)), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
                flow = stage.with_options(
                    name=name, flow_run_name=f"{label(self._k)} {name}", timeout_seconds=longest_s
                )
                flow(str(self._ws.root), self._k, name)
            return True
        self._ask(name, longest_s)
        return False

    def _ask(self, name: str, longest_s: float) -> None:
        self._at_work.append(apart.Apart(self._ws, self._k, name, self._now.cluster, longest_s))
        tell(name, "is asked for, as a process of its own")

    def _give_up(self) -> None:
        """Those at work: there are some where this process is told to end."""
        if self._at_work:
            with get_client(sync_client=True) as client:
                for one in self._at_work:
                    one.give_up(client)

    def _ended(self) -> list[str]:
        """Names of those that have come to their end since, after a look at those at work."""
        time.sleep(_LOOK_S)
        done = []
        with get_client(sync_client=True) as client:
            for one in list(self._at_work):
                try:
                    said, failure = one.look(client), None
                except FlywheelError as error:
                    said, failure = None, error
                if said is None and failure is None:
                    continue
                self._at_work.remove(one)
                one.give_up(client)
                if failure is None:
                    report(one.name, f"ended: {said}")
                    done.append(one.name)
                elif self._may_go_on(one.name, failure):
                    self._ask(one.name, one.longest_s)
                else:
                    self._failure = self._failure or failure
        return done

    def _may_go_on(self, name: str, error: FlywheelError) -> bool:
        """One whose process died is asked for again, as an iteration whose process died is (`operations.restarts`)."""
        again = isinstance(error, WorkerLost) and not self._failure
        again = again and self._lost[name] < self._now.operations.restarts
        tell(name, f"{error}; it is asked for again" if again else f"failed: {error}")
        self._lost[name] += 1
        return again
