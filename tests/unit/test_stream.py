"""The pool: what goes on while training is at work, whose weights each step has, and that no wait is silent."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager

import pytest
from lamp_env import LEFT, RIGHT, LampEnv, Lamps, Scripted, settings, task

from flywheel.config import RlSettings
from flywheel.rollout.async_pool import AsyncRolloutPool, OccupancyMeter, RolloutLog, RolloutPlan
from flywheel.training.rl.algorithm import ScoredTrajectory
from flywheel.training.rl.algorithms.grpo import Grpo
from flywheel.utils.errors import EnvTimeout, PolicyError, TrainingError

TASKS = {f"lamp{number:03d}": task(number, max_steps=20) for number in range(4)}


class InTurn:
    def __init__(self):
        self.drawn = 0

    def next(self):
        self.drawn += 1
        return TASKS[f"lamp{(self.drawn - 1) % 4:03d}"]

    def record(self, task_id, scores, successes):
        pass


class Gated(Lamps):
    """Every step of an environment waits until the test lets it go: `await lamps.go(n, steps)`, n: of the lease."""

    def __init__(self):
        super().__init__(lambda lease: GatedEnv(self, lease))
        self.gates: dict[int, asyncio.Semaphore] = {}
        self.stepped: dict[int, asyncio.Semaphore] = {}

    def gate(self, lease):
        self.gates.setdefault(lease, asyncio.Semaphore(0))
        self.stepped.setdefault(lease, asyncio.Semaphore(0))
        return self.gates[lease], self.stepped[lease]

    async def go(self, lease, steps=1):
        gate, stepped = self.gate(lease)
        for _ in range(steps):
            gate.release()
            await asyncio.wait_for(stepped.acquire(), 30)


class GatedEnv(LampEnv):
    def __init__(self, lamps, lease):
        super().__init__()
        self.lamps, self.lease = lamps, lease

    async def step(self, action):
        gate, stepped = self.lamps.gate(self.lease)
        await gate.acquire()
        try:
            return await super().step(action)
        finally:
            stepped.release()


class Versioned(Scripted):
    """A policy whose weights have names; `swap` gives it others."""

    def __init__(self, answer=lambda context, sampling: LEFT):
        super().__init__(answer)
        self.weight_version = "w0"

    def swap(self, name):
        self.weight_version = name


def grade(task, episode):
    return float('"hit": true' in episode.trajectory.final_state), True


def pool_of(tmp_path, policy, lamps, *, plan=None, chosen=None, grade=grade, **more):
    chosen = chosen or settings()
    log = RolloutLog(tmp_path / "pool", "key", InTurn(), TASKS, plan or RolloutPlan(1, 2, 4, 2, 5))
    return AsyncRolloutPool(
        log, policy, lamps, grade=grade, iteration=0, settings=chosen, temperature=1.0, where="rl games", **more
    )


async def test_long_episodes_go_on_with_newer_weights(tmp_path):
    """The right-hand lamps end at their first click, the left-hand ones when their policy turns left."""
    side = {"now": RIGHT}
    policy, lamps = Versioned(lambda context, sampling: side["now"]), Gated()
    async with pool_of(tmp_path, policy, lamps) as pool:
        waiting = asyncio.create_task(pool.next_batch())
        for lease in (0, 1, 2):  # tasks 0, 2: right; 1, 3: left
            await lamps.go(lease)
        first = await waiting
        assert [request.ordinal for request, _ in first.episodes] == [0, 2]
        # Training is at work, and episode 1 goes on: this step is still of the old weights.
        assert {request.ordinal for request in pool._tasks.values()} >= {1, 3}
        await lamps.go(1)
        pool.register_weights("w1", 1)
        policy.swap("w1")
        pool.advance()
        side["now"] = LEFT
        for lease in (1, 3):
            while lease in pool.rollout_log.running:
                await lamps.go(lease)
        second = await asyncio.wait_for(pool.next_batch(), 30)
    assert [request.ordinal for request, _ in second.episodes] == [1, 3]
    versions = [row.version for row in second.episodes[0][1].steps]
    names = [row.weight_version for row in second.episodes[0][1].steps]
    assert versions == sorted(versions)
    assert set(versions) == {0, 1}
    assert [f"w{version}" for version in versions] == names
    assert second.figures["staleness_max"] == 1
    assert 0 < second.figures["staleness_mean"] < 1
    assert first.figures["staleness_max"] == 0
    assert first.figures["length_consumed"] == 1
    assert "length_in_flight" in first.figures


async def test_at_no_staleness_nothing_begins_before_the_update(tmp_path):
    policy, lamps = Versioned(lambda context, sampling: RIGHT if sampling.seed % 2 else LEFT), Lamps()
    async with pool_of(tmp_path, policy, lamps, plan=RolloutPlan(2, 4, 3, 0, 5)) as pool:
        for step in range(3):
            batch = await asyncio.wait_for(pool.next_batch(), 30)
            assert [request.ordinal for request, _ in batch.episodes] == list(range(4 * step, 4 * step + 4))
            assert batch.figures["running"] == 0
            assert lamps.leases == 4 * step + 4
            assert {row.version for _, episode in batch.episodes for row in episode.steps} == {step}
            pool.register_weights(f"w{step + 1}", step + 1)
            policy.swap(f"w{step + 1}")
            pool.advance()
    assert lamps.running == 0


async def test_utilisation_is_the_share_of_time_that_environments_are_lent(tmp_path):
    now = [100.0]
    occupancy = OccupancyMeter(Lamps(), 4, clock=lambda: now[0])
    async with occupancy.env(task(0)):
        now[0] += 2
        async with occupancy.env(task(0)):
            now[0] += 1
    now[0] += 1
    assert occupancy.utilisation_since_last_call() == pytest.approx((1 * 2 + 2 * 1) / (4 * 4))
    now[0] += 5
    assert occupancy.utilisation_since_last_call() == 0
    assert occupancy.utilisation_since_last_call() == 0  # no time has passed


async def test_a_crash_is_tried_again_and_never_scored(tmp_path):
    judged = []

    def judge(task, episode):
        judged.append(episode.id)
        return grade(task, episode)

    ended = []
    lamps = Lamps(lambda lease: LampEnv(crash_at=0 if lease < 3 else None))
    chosen = settings(rollout={"retries": 2, "max_concurrent": 1})
    policy = Versioned(lambda context, sampling: RIGHT)
    plan = RolloutPlan(1, 1, 2, 0, 5)
    async with pool_of(tmp_path, policy, lamps, plan=plan, chosen=chosen, grade=judge, on_episode=ended.append) as pool:
        with pytest.raises(TrainingError, match=r"every environment crashed: 1 episodes in a row; the last: the page"):
            await asyncio.wait_for(pool.next_batch(), 30)
    assert judged == []
    assert [e.trajectory.status for e in ended] == ["crashed"]
    # The next start goes on, with a fresh request in the place of the failed one.
    async with pool_of(tmp_path, policy, lamps, plan=plan, chosen=chosen, grade=judge) as pool:
        batch = await asyncio.wait_for(pool.next_batch(), 30)
    assert [request.ordinal for request, _ in batch.episodes] == [1]


async def test_a_failed_place_is_given_to_another(tmp_path):
    lamps = Lamps(lambda lease: LampEnv(crash_at=0 if lease in (1, 2) else None))
    chosen = settings(rollout={"retries": 0})
    policy = Versioned(lambda context, sampling: RIGHT if sampling.seed % 2 else LEFT)
    async with pool_of(tmp_path, policy, lamps, plan=RolloutPlan(1, 4, 2, 0, 5), chosen=chosen) as pool:
        batch = await asyncio.wait_for(pool.next_batch(), 30)
    assert len(batch.episodes) == 4
    assert batch.figures["crashed"] == 2
    assert len({request.ordinal for request, _ in batch.episodes} - {0, 1, 2, 3}) == 2


async def test_an_episode_whose_environment_crashed_is_in_no_mean(tmp_path):
    """Of a group of four one is given up: three are trained on, relative to their own mean, and told to the sampler."""
    lamps = Lamps(lambda lease: LampEnv(crash_at=0 if lease == 1 else None))
    told = []

    class Listening(InTurn):
        def record(self, task_id, scores, successes):
            told.append((task_id, list(scores)))

    chosen = settings(rollout={"retries": 0, "max_concurrent": 1})
    log = RolloutLog(tmp_path, "key", Listening(), TASKS, RolloutPlan(4, 4, 1, 0, 5, whole_groups=True))
    policy = Versioned(lambda context, sampling: RIGHT if sampling.seed % 2 else LEFT)
    playing = {"grade": lambda task, episode: (len(episode.steps) / 10, True), "iteration": 0, "temperature": 1.0}
    async with AsyncRolloutPool(log, policy, lamps, settings=chosen, where="rl", **playing) as pool:
        batch = await asyncio.wait_for(pool.next_batch(), 30)
    assert [request.ordinal for request, _ in batch.episodes] == [0, 2, 3]
    rewards = [outcome.score for outcome in batch.outcomes]
    assert min(rewards) > 0
    assert told == [("lamp000", rewards)]
    one = [
        ScoredTrajectory(episode.trajectory.task_id, (outcome.score,), (1,))
        for (_, episode), outcome in zip(batch.episodes, batch.outcomes, strict=True)
    ]
    found = Grpo().advantages(one, RlSettings(advantage_normalization="none"))
    wanted = [reward - (sum(rewards) - reward) / 2 for reward in rewards]
    assert [float(each.advantages[0][0]) for each in found] == pytest.approx(wanted)


async def test_every_environment_crashes(tmp_path):
    lamps = Lamps(lambda lease: LampEnv(crash_at=0))
    chosen = settings(rollout={"retries": 1, "max_concurrent": 3})
    async with pool_of(tmp_path, Versioned(), lamps, plan=RolloutPlan(1, 4, 2, 0, 5), chosen=chosen) as pool:
        with pytest.raises(TrainingError) as caught:
            await asyncio.wait_for(pool.next_batch(), 30)
    assert "every environment crashed: 3 episodes in a row; the last: the page crashed" in str(caught.value)
    assert "rl games, step 1, episode" in str(caught.value)
    assert "of task lamp00" in str(caught.value)
    assert 6 <= lamps.leases <= 6 + 2 * 2 * 2  # two tries each; those that took their places had begun
    assert lamps.running == 0


async def test_no_batch_within_the_deadline(tmp_path):
    lamps = Gated()
    chosen = settings(rl={"batch_timeout_s": 0.2})
    async with pool_of(tmp_path, Versioned(), lamps, chosen=chosen) as pool:
        with pytest.raises(TrainingError, match=r"no batch in 0.2 s: 0 of 2 episodes have finished, 6 are under way"):
            await pool.next_batch()
        with pytest.raises(TrainingError, match=r"the oldest is episode 0 of task lamp000 at its step 0 .*step 1"):
            await pool.next_batch()
    assert lamps.running == 0  # those under way gave their environments back


async def test_a_dead_policy_ends_the_wait(tmp_path):
    class Dead(Versioned):
        async def complete(self, context, sampling):
            raise PolicyError("the server is gone", where="http://there", fix="start it")

    async with pool_of(tmp_path, Dead(), Lamps()) as pool:
        with pytest.raises(
            PolicyError, match=r"the server is gone \(http://there, rl games, step 1, episode \d of task lamp00\d"
        ):
            await asyncio.wait_for(pool.next_batch(), 30)


@pytest.mark.parametrize(
    ("score", "told"),
    [
        (lambda: 1 / 0, r"it could not be judged: ZeroDivisionError: .*\(trajectory t[0-9a-f]{19}, rl games"),
        (lambda: math.nan, r"the score is nan, .*\(trajectory t[0-9a-f]{19}, rl games"),
    ],
)
async def test_a_scorer_that_fails_is_named_with_the_trajectory(tmp_path, score, told):
    policy = Versioned(lambda context, sampling: RIGHT if sampling.seed % 2 else LEFT)
    async with pool_of(tmp_path, policy, Lamps(), grade=lambda task, episode: (score(), True)) as pool:
        with pytest.raises(TrainingError, match=told):
            await asyncio.wait_for(pool.next_batch(), 30)


async def test_a_reward_that_is_no_number_is_named(tmp_path):
    class Unsound(LampEnv):
        def _result(self, terminated=False):
            result = super()._result(terminated)
            object.__setattr__(result, "reward", math.nan)
            return result

    policy = Versioned(lambda context, sampling: RIGHT if sampling.seed % 2 else LEFT)
    async with pool_of(tmp_path, policy, Lamps(lambda lease: Unsound())) as pool:
        with pytest.raises(TrainingError, match=r"the environment's rewards sum to nan \(trajectory t"):
            await asyncio.wait_for(pool.next_batch(), 30)


async def test_weights_of_somebody_else_are_refused(tmp_path):
    policy = Versioned(lambda context, sampling: RIGHT if sampling.seed % 2 else LEFT)
    async with pool_of(tmp_path, policy, Lamps()) as pool:
        policy.swap("theirs")
        with pytest.raises(TrainingError, match="weights theirs, which this run did not give it"):
            await asyncio.wait_for(pool.next_batch(), 30)


async def test_a_sandbox_that_lends_nothing(tmp_path):
    class Empty:
        @asynccontextmanager
        async def env(self, task):
            raise EnvTimeout("no page came free")
            yield

    chosen = settings(rollout={"retries": 0, "max_concurrent": 2})
    async with pool_of(tmp_path, Versioned(), Empty(), chosen=chosen) as pool:
        with pytest.raises(TrainingError, match="every environment crashed: 2 episodes in a row; the last: no page"):
            await asyncio.wait_for(pool.next_batch(), 30)
