"""The log: no episode is lost or used twice, whatever happens in whatever order, a killed process included."""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lamp_env import task
from night import examples

from flywheel.rollout.async_pool import RolloutLog, RolloutPlan
from flywheel.rollout.episode import Episode, read_episode, read_episode_facts, write_episode
from flywheel.store.schema import Step, Trajectory
from flywheel.utils.errors import DataError

TASKS = {f"lamp{number:03d}": task(number) for number in range(5)}


class Memory:
    """A source whose choice depends on all it was told, as a curriculum's does: a replay that differs shows."""

    def __init__(self) -> None:
        self.state = 1

    def next(self):
        self.state = (self.state * 31 + 7) % 10_007
        return TASKS[f"lamp{self.state % 5:03d}"]

    def record(self, task_id, scores, successes) -> None:
        self.state = (self.state * 17 + int(task_id[4:]) + sum(successes) + int(100 * sum(scores))) % 10_007


def episode(name: str, steps: int = 1) -> Episode:
    now = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)
    rows = tuple(
        Step(name, n, "model", logprobs=(-0.1, -1e-7), sampled_logprobs=(-0.3, -2e-9), version=n, started_at=now)
        for n in range(steps)
    )
    trajectory = Trajectory(name, "k1", "games", status="completed", reward=0.1 + 0.2, started_at=now, ended_at=now)
    return Episode(trajectory, rows, {"ab" * 32: b"\x89PNG"}, "last")


def test_an_episode_comes_back_as_it_was(tmp_path):
    one = episode("t1", 2)
    write_episode(tmp_path / "e.zip", one, {"start": 3})
    assert read_episode(tmp_path / "e.zip") == one
    assert read_episode_facts(tmp_path / "e.zip") == {"start": 3}
    (tmp_path / "e.zip").write_bytes(b"half")
    with pytest.raises(DataError, match="cannot be read"):
        read_episode(tmp_path / "e.zip")


@pytest.mark.parametrize(
    "content", [{}, {"episode.json": "{"}, {"episode.json": "[]"}, {"episode.json": '{"steps": []}'}]
)
def test_a_damaged_episode_is_refused_by_its_path(tmp_path, content):
    path = tmp_path / "e.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, text in content.items():
            file.writestr(name, text)
    with pytest.raises(DataError, match=r"the episode cannot be read.*e\.zip"):
        read_episode(path)
    with pytest.raises(DataError, match=r"the episode cannot be read.*e\.zip"):
        read_episode_facts(path)


def test_an_episode_with_a_changed_byte_is_refused(tmp_path):
    path = tmp_path / "e.zip"
    write_episode(path, episode("t1", 2), {"start": 3})
    path.write_bytes(path.read_bytes().replace(b"facts", b"fakts", 1))
    with pytest.raises(DataError, match="the episode cannot be read"):
        read_episode(path)


class LedgerMachine(RuleBasedStateMachine):
    """Trainer and pool as they use the log. `saved` stands for the trainer's checkpoint."""

    @initialize(
        samples=st.integers(1, 3),
        groups=st.integers(1, 3),
        batches=st.integers(1, 4),
        staleness=st.integers(0, 3),
        whole=st.booleans(),
        places=st.integers(1, 6),
    )
    def begin(self, samples, groups, batches, staleness, whole, places):
        self.folder = Path(tempfile.mkdtemp())
        self.plan = RolloutPlan(samples, groups * samples, batches, staleness, 11, whole)
        self.places, self.saved, self.running = places, 0, {}
        self.seen: dict[int, tuple] = {}  # ordinal -> what its request said
        self.trained: list[list[int]] = []
        self.failed: set[int] = set()
        self.finished: set[int] = set()
        self.batch: list[int] | None = None
        self.open()

    def open(self):
        self.source = Memory()
        self.log = RolloutLog(self.folder, "key", self.source, TASKS, self.plan, self.saved)

    @rule()
    def admit(self):
        request = self.log.admit_episode(self.places)
        if request is None:
            return
        facts = (request.group, request.task.task_id, request.sample, request.seed)
        assert all(facts[1:3] != other[1:3] for n, other in self.seen.items() if n != request.ordinal)  # unique names
        assert self.seen.setdefault(request.ordinal, facts) == facts  # the same after a kill
        assert request.ordinal not in self.failed | self.finished | set(self.running)
        self.running[request.ordinal] = request

    @precondition(lambda self: self.running)
    @rule(data=st.data(), score=st.sampled_from((0.0, 0.5, 1.0)))
    def finish(self, data, score):
        request = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        self.log.accept(request, episode(f"t{request.ordinal}"), score, score == 1)
        self.finished.add(request.ordinal)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data):
        request = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        self.log.fail(request, "the page crashed")
        self.failed.add(request.ordinal)

    @precondition(lambda self: self.saved < self.plan.batches)
    @rule()
    def take(self):
        taken = self.log.take_batch()
        if taken is None:
            return
        ordinals = [request.ordinal for request in taken]
        assert self.batch in (None, ordinals)  # a batch that was taken stays as it is
        self.batch = ordinals
        assert [self.log.read(request).id for request in taken] == [f"t{n}" for n in ordinals]
        assert all(self.saved - self.log.finished[n].start <= self.plan.max_staleness for n in ordinals)
        if not self.plan.whole_groups:
            assert len(ordinals) == self.plan.batch
        else:
            groups = {n // self.plan.samples for n in ordinals}
            assert len(groups) == self.plan.batch // self.plan.samples
            every = {n for g in groups for n in range(g * self.plan.samples, (g + 1) * self.plan.samples)}
            assert every <= set(ordinals) | self.failed

    @precondition(lambda self: self.batch is not None)
    @rule(killed=st.booleans())
    def train(self, killed):
        self.trained.append(self.batch)
        self.saved, self.batch = self.saved + 1, None
        if killed:  # after the trainer's checkpoint, before the log knows
            self.kill(torn=False)
        else:
            self.log.advance()

    @rule(torn=st.booleans())
    def kill(self, torn):
        log = self.folder / "log.jsonl"
        lines = log.read_bytes()
        if torn:
            log.write_bytes(lines + b'{"failed": 3, "er')
            (self.folder / ".00000099.zip.5e1f0a77.part").write_bytes(b"half")
        state, before = self.source.state, (self.log.version, sorted(self.log.finished))
        self.running = {}
        self.open()
        assert log.read_bytes() == lines
        assert self.source.state == state
        if self.log.version == before[0]:
            assert (self.log.version, sorted(self.log.finished)) == before

    @invariant()
    def nothing_is_lost_or_used_twice(self):
        used = [n for batch in self.trained for n in batch]
        assert len(used) == len(set(used))
        assert set(used) <= self.finished
        assert set(self.log.finished) == self.finished - set(used)
        assert {int(path.stem) for path in self.folder.glob("*.zip")} == set(self.log.finished)

    @invariant()
    def what_is_begun_is_bounded(self):
        begun = len(self.finished) + len(self.log.running)
        most = min(self.plan.max_staleness + self.saved + 1, self.plan.batches) * self.plan.batch
        assert len(self.log.running) <= self.places
        assert begun <= most

    def teardown(self):
        """Whatever happened, the run can be ended: no deadlock, and as many steps as were asked for."""
        while self.saved < self.plan.batches:
            self.admit()
            while self.running:
                request = self.running.pop(min(self.running))
                self.log.accept(request, episode(f"t{request.ordinal}"), 1.0, True)
                self.finished.add(request.ordinal)
            self.take()
            if self.batch:
                self.train(killed=False)
        assert len(self.trained) == self.plan.batches
        assert not self.log.finished
        shutil.rmtree(self.folder)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_another_run_begins_anew(tmp_path):
    plan = RolloutPlan(1, 1, 2, 0, 0)
    log = RolloutLog(tmp_path / "pool", "one", Memory(), TASKS, plan)
    log.accept(log.admit_episode(1), episode("t0"), 1.0, True)
    assert sorted(RolloutLog(tmp_path / "pool", "one", Memory(), TASKS, plan).finished) == [0]
    assert not RolloutLog(tmp_path / "pool", "two", Memory(), TASKS, plan).finished
    assert not list((tmp_path / "pool").glob("*.zip"))


def test_a_checkpoint_that_went_back_begins_anew(tmp_path):
    """Episodes that were trained on are gone, so a trainer that lost its checkpoint cannot have them again."""
    plan = RolloutPlan(1, 1, 3, 0, 0)
    log = RolloutLog(tmp_path, "one", Memory(), TASKS, plan)
    for _ in range(2):
        log.accept(log.admit_episode(1), episode("t"), 1.0, True)
        log.take_batch()
        log.advance()
    assert RolloutLog(tmp_path, "one", Memory(), TASKS, plan, version=2).admit_episode(1).ordinal == 2
    assert RolloutLog(tmp_path, "one", Memory(), TASKS, plan, version=0).admit_episode(1).ordinal == 0


def test_groups_are_recorded_once_and_in_order(tmp_path):
    told = []

    class Told(Memory):
        def record(self, task_id, scores, successes):
            told.append((task_id, scores, successes))

    source = Told()
    log = RolloutLog(tmp_path, "one", source, TASKS, RolloutPlan(2, 2, 4, 3, 0))
    tickets = [log.admit_episode(8) for _ in range(8)]
    names = [tickets[n].task.task_id for n in (0, 2, 4, 6)]
    for n, score in ((2, 0.25), (5, 1.0), (3, 0.5), (0, 0.0)):
        log.accept(tickets[n], episode(f"t{n}"), score, score == 1)
    log.fail(tickets[4], "crashed")
    assert [t.ordinal for t in log.take_batch()] == [0, 2]
    assert told == [(names[1], [0.25, 0.5], [False, False]), (names[2], [1.0], [True])]  # the third lost one
    log.advance()
    log.accept(tickets[1], episode("t1"), 1.0, True)
    for n in (6, 7):
        log.fail(tickets[n], "crashed")
    assert [t.ordinal for t in log.take_batch()] == [1, 3]
    assert told[2:] == [(names[0], [0.0, 1.0], [False, True]), (names[3], [], [])]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["batch"] for line in lines if "batch" in line] == [0, 1]


def test_what_does_not_run_cannot_fail_and_the_log_says_nothing_of_it(tmp_path):
    plan = RolloutPlan(1, 1, 3, 3, 0)
    log = RolloutLog(tmp_path, "one", Memory(), TASKS, plan)
    request = log.admit_episode(2)
    log.accept(request, episode("t0"), 1.0, True)
    before = (tmp_path / "log.jsonl").read_bytes()
    with pytest.raises(KeyError):
        log.fail(request, "crashed")
    assert (tmp_path / "log.jsonl").read_bytes() == before
    assert [t.ordinal for t in RolloutLog(tmp_path, "one", Memory(), TASKS, plan).take_batch()] == [0]
