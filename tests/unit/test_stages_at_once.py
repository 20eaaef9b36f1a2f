"""Which stages of an iteration begin when: after those that they read from, so many at once."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from flows import iteration
from flywheel.cluster import resources
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline import dag
from flywheel.pipeline.stage import StageContext
from flywheel.store.versioning import stage_records
from flywheel.utils.errors import ClusterError, EnvError, WorkerLost

_DOMAINS = ["games", "grounding", "sites"]
_RL = [f"rl-{domain}" for domain in _DOMAINS]
_STAGES = [
    "ingest",
    "synthesize",
    "rollout",
    "score",
    "route",
    "ct",
    "sft",
    "rl-{domain}",
    "merge",
    "evaluate",
    "promote",
]


@pytest.fixture(autouse=True)
def only_these_stages(monkeypatch):
    """A stage that somebody adds changes nothing here."""
    known = tuple(stage for stage in dag.all_stages() if stage.name in _STAGES)
    monkeypatch.setattr(dag, "all_stages", lambda: known)


def test_a_stage_waits_for_those_that_write_what_it_reads():
    before = dag.upstream_stages(dag.stage_order(_DOMAINS), _DOMAINS)
    assert before["ingest"] == before["synthesize"] == set()
    assert before["rollout"] == {"synthesize"}
    assert {"score", "rollout"} < before["route"]
    assert all(not before[name] & set(_RL) and "sft" in before[name] for name in _RL)
    assert before["merge"] == set(_RL)
    assert before["promote"] == {"evaluate", "merge"}
    assert dag.upstream_stages(["synthesize", "rollout"], _DOMAINS) == {"synthesize": set(), "rollout": {"synthesize"}}


Fails = dict[str, list[Exception]]


class Told:
    """What began where, and what was at work then; the stages end in the order in which they began."""

    def __init__(self, monkeypatch, ws: Workspace, at_once: int, fails: Fails, done: set[str]) -> None:
        told = self
        self.here: list[str] = []
        self.apart: list[tuple[str, int]] = []
        self.given_up: list[str] = []
        at_work: list[str] = []

        class Apart:
            def __init__(self, ws, k, name, limits, longest_s) -> None:
                self.longest_s = longest_s
                at_work.append(name)
                told.apart.append((name, len(at_work)))
                self.name = name

            def poll(self, client) -> str | None:
                if self.name != at_work[0]:
                    return None
                if fails.get(self.name):
                    raise fails[self.name].pop(0)
                return "well"

            def release(self, client) -> None:
                at_work.remove(self.name)
                told.given_up.append(self.name)

        class Here:
            def with_options(self, **_):
                return lambda root, k, name: told.here.append(name)

        own = Settings()
        own = own.model_copy(
            update={"synthesis": own.synthesis.model_copy(update={"domains": {domain: ["all"] for domain in _DOMAINS}})}
        )
        rules = own.operations.model_copy(update={"restarts": 2})
        limits = own.cluster.model_copy(update={"max_parallel_stages": at_once})
        now = own.model_copy(update={"cluster": limits, "operations": rules})
        monkeypatch.setattr(stage_records, "load_iteration_params", lambda *_: own)
        monkeypatch.setattr(stage_records, "is_stage_done", lambda ws, name, k: name in done)
        monkeypatch.setattr(iteration, "get_client", lambda **_: nullcontext())
        monkeypatch.setattr(iteration, "_LOOK_S", 0)
        monkeypatch.setattr(iteration.stage_run, "StageProcess", Apart)
        monkeypatch.setattr(iteration, "stage_flow", Here())
        self.run = iteration.StageScheduler(ws, 1, now).run


@pytest.fixture
def told(monkeypatch, ws):
    def make(at_once: int, fails: Fails | None = None, done: tuple[str, ...] = ()) -> Told:
        return Told(monkeypatch, ws, at_once, fails or {}, set(done))

    return make


def test_one_at_a_time_is_the_order_of_the_pipeline_in_this_process(told):
    one = told(1)
    one.run(None)
    assert tuple(one.here) == dag.stage_order(_DOMAINS)
    assert one.apart == []


def test_those_beside_others_are_processes_and_the_rest_is_not(told):
    """The last specialist is by itself once those before it have ended."""
    two = told(2)
    two.run(None)
    assert two.apart == [("ingest", 1), ("synthesize", 2), ("rl-games", 1), ("rl-grounding", 2)]
    assert two.here == [name for name in dag.stage_order(_DOMAINS) if name not in dict(two.apart)]


def test_as_many_as_are_allowed(told):
    three = told(3)
    three.run(None)
    assert three.apart[2:] == [("rl-games", 1), ("rl-grounding", 2), ("rl-sites", 3)]


def test_it_ends_where_it_was_told_to(told):
    two = told(2)
    two.run("synthesize")
    assert (two.here, [name for name, _ in two.apart]) == ([], ["ingest", "synthesize"])


def test_what_was_done_before_is_passed_over(told):
    two = told(2, done=("ingest", *dag.stage_order(_DOMAINS)[2:-1]))
    two.run(None)
    assert (two.here, two.apart) == (["synthesize", "promote"], [])


def test_where_one_fails_the_others_end_nothing_begins_and_the_first_error_counts(told):
    two = told(2, {"rl-games": [EnvError("it broke")], "rl-grounding": [WorkerLost("it too")]})
    with pytest.raises(EnvError, match="it broke"):
        two.run(None)
    assert [name for name, _ in two.apart[2:]] == ["rl-games", "rl-grounding"]
    assert two.given_up[2:] == ["rl-games", "rl-grounding"]
    assert "merge" not in two.here


def test_one_whose_process_died_is_asked_for_again_so_often(told):
    two = told(2, {"ingest": [WorkerLost("killed"), WorkerLost("again")]})
    two.run("synthesize")
    assert [name for name, _ in two.apart].count("ingest") == 3
    two = told(2, {"ingest": [WorkerLost("killed"), WorkerLost("again"), WorkerLost("and again")]})
    with pytest.raises(WorkerLost, match="and again"):
        two.run("synthesize")


def test_where_the_iteration_is_told_to_end_all_are_given_up(told, monkeypatch):
    two = told(2)

    def stopped(_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(iteration.time, "sleep", stopped)
    with pytest.raises(KeyboardInterrupt):
        two.run(None)
    assert sorted(two.given_up) == ["ingest", "synthesize"]


def test_one_stage_has_the_gpus_of_a_machine_at_a_time(ws, monkeypatch):
    def alone(name: str, **limits):
        own = Settings()
        return resources.hold_gpu(StageContext(ws, own, 1, name), own.cluster.model_copy(update=limits), 0.1)

    monkeypatch.setattr(resources, "_has_gpu", lambda: True)
    with alone("rl-games"):
        with pytest.raises(ClusterError, match="another process has been at the GPU"), alone("rl-sites"):
            pass
        with alone("merge"), alone("rl-sites", engine="ray"):  # it takes none; Ray gives them out
            pass
    with alone("rl-sites"):
        pass
    monkeypatch.setattr(resources, "_has_gpu", lambda: False)
    with alone("rl-games"), alone("rl-sites"):
        pass
