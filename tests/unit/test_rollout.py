"""The rollout loop: what is recorded, budgets, crashes, order, deadlines."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest
from lamp_env import LEFT, RIGHT, LampEnv, Lamps, Scripted, screen, settings, task

from flywheel.agent.prompt import Image
from flywheel.rollout.episode import RolloutStats, run_episode, run_rollout
from flywheel.store.partitions import table_from_rows
from flywheel.store.schema import make_trajectory_id, record_to_row
from flywheel.utils.errors import EnvError, PolicyError, PolicyTimeout

S = settings()
ARGUMENTS = {"iteration": 3, "settings": S, "temperature": 1.0}


async def episode(answer, *, chosen=None, env=None, sample=0):
    policy = Scripted(answer)
    return await run_episode(env or LampEnv(), policy, chosen or task(1), sample, **ARGUMENTS), policy


async def test_what_an_episode_records():
    answers = iter([RIGHT, LEFT])
    got, _ = await episode(lambda context, sampling: next(answers))
    row = got.trajectory
    assert row.trajectory_id == got.id == make_trajectory_id(3, "lamp001", 0, "scripted")
    assert (row.status, row.steps, row.reward, row.policy_version) == ("completed", 2, 1.0, "scripted")
    assert json.loads(row.final_state) == {"clicks": 2, "hit": True}
    first, second = got.steps
    assert (first.action_type, first.thought, first.x, first.y) == ("click", "right.", 0.755, 0.505)
    assert first.token_ids == tuple(map(ord, RIGHT))
    assert first.logprobs == (-0.5,) * len(RIGHT)
    assert first.weight_version == "scripted"
    # The screen is the one that the action was chosen on, not the one it led to.
    assert first.image_sha256 == hashlib.sha256(screen("left", 0)).hexdigest()
    assert second.image_sha256 == hashlib.sha256(screen("left", 1)).hexdigest()
    # What the last one led to is the trajectory's.
    assert row.final_image_sha256 == hashlib.sha256(screen("left", 2)).hexdigest()
    assert set(got.images) == {first.image_sha256, second.image_sha256, row.final_image_sha256}
    assert got.last_screen == screen("left", 2)
    assert [s.terminated for s in got.steps] == [False, True]
    # The rows fit the tables.
    assert table_from_rows("trajectories", [record_to_row("trajectories", row)]).num_rows == 1
    assert table_from_rows("steps", [record_to_row("steps", step) for step in got.steps]).num_rows == 2


async def test_policy_sees_the_screen_and_what_was_done():
    answers = iter([RIGHT, RIGHT, LEFT])
    _, policy = await episode(lambda context, sampling: next(answers))
    screens = [[p.png for m in context for p in m.parts if isinstance(p, Image)][-1] for context, _ in policy.asked]
    assert screens == [screen("left", n) for n in range(3)]
    texts = ["".join(p for m in context for p in m.parts if isinstance(p, str)) for context, _ in policy.asked]
    assert [text.count("right.") for text in texts] == [0, 1, 2]


async def test_parse_error_is_a_step_that_the_environment_does_not_see():
    answers = iter(["no action here", LEFT])
    env = LampEnv()
    got, _ = await episode(lambda context, sampling: next(answers), env=env)
    assert len(env.actions) == 1
    assert [bool(s.parse_error) for s in got.steps] == [True, False]
    assert got.steps[0].action is None
    assert got.steps[0].raw_text == "no action here"
    assert got.steps[0].image_sha256 == got.steps[1].image_sha256
    assert got.trajectory.status == "completed"


@pytest.mark.parametrize(("text", "status"), [(RIGHT, "truncated"), ("nothing", "invalid")])
async def test_budget_counts_every_step(text, status):
    got, policy = await episode(lambda context, sampling: text)
    assert (got.trajectory.status, got.trajectory.steps, len(policy.asked)) == (status, 3, 3)
    assert got.steps[-1].truncated is True
    assert got.trajectory.reward == 0


async def test_budget_mixes_broken_steps_and_actions():
    answers = iter([RIGHT, "nothing", RIGHT])
    got, _ = await episode(lambda context, sampling: next(answers))
    assert (got.trajectory.status, got.trajectory.steps) == ("truncated", 3)
    assert [s.truncated for s in got.steps] == [False, False, True]


async def test_sampling_seed_is_of_the_trajectory_and_the_step():
    def seeds(policy):
        return [sampling.seed for _, sampling in policy.asked]

    (_, one), (_, again), (_, other) = [
        await episode(lambda context, sampling: RIGHT, sample=sample) for sample in (0, 0, 1)
    ]
    assert seeds(one) == seeds(again)
    assert len({*seeds(one), *seeds(other)}) == 6


async def test_order_of_finishing_changes_nothing():
    tasks = [task(n) for n in range(6)]

    def comparable(episodes):
        timeless = {"started_at", "ended_at"}
        return [
            [{k: v for k, v in vars(row).items() if k not in timeless} for row in (e.trajectory, *e.steps)]
            for e in episodes
        ]

    def answer(context, sampling):
        return LEFT if sampling.seed % 3 else RIGHT

    finished = []
    one = await run_rollout(tasks, 3, Scripted(answer), Lamps(), on_episode=finished.append, **ARGUMENTS)
    two = await run_rollout(tasks[::-1], 3, Scripted(answer), Lamps(), **ARGUMENTS)
    assert len(one) == 18
    assert [e.id for e in one] == sorted(e.id for e in finished) != [e.id for e in finished]
    assert comparable(one) == comparable(two)


@pytest.mark.parametrize(("concurrent", "pages", "most"), [(2, 8, 2), (8, 3, 3)])
async def test_concurrency_is_bounded(concurrent, pages, most):
    chosen = settings(rollout={"max_concurrent": concurrent}, sandbox={"width": 64, "height": 64, "pages": pages})
    lamps = Lamps()
    await run_rollout(
        [task(n) for n in range(10)],
        1,
        Scripted(lambda c, s: RIGHT),
        lamps,
        iteration=0,
        settings=chosen,
        temperature=1.0,
    )
    assert lamps.most == most


async def test_crash_is_tried_again_in_a_fresh_environment():
    lamps = Lamps(lambda lease: LampEnv(crash_at=1 if lease == 0 else None))
    answers = Scripted(lambda context, sampling: LEFT if "Done" in str(context[-1].parts) else RIGHT)
    got = await run_rollout([task(1)], 1, answers, lamps, **ARGUMENTS)
    assert [e.trajectory.status for e in got] == ["completed"]
    assert len(got[0].steps) == 2
    assert len(lamps.lent) == 2
    assert all(env.closed for env in lamps.lent)


async def test_crash_in_every_try_is_kept_and_never_scored():
    lamps = Lamps(lambda lease: LampEnv(crash_at=0))
    got = await run_rollout([task(1)], 2, Scripted(lambda c, s: LEFT), lamps, **ARGUMENTS)
    assert lamps.leases == 2 * (S.rollout.retries + 1)
    for e in got:
        assert (e.trajectory.status, e.steps) == ("crashed", ())
        assert "the page crashed" in e.trajectory.error
        assert e.trajectory.final_state is None
        assert e.trajectory.reward is None
    assert table_from_rows("trajectories", [record_to_row("trajectories", e.trajectory) for e in got]).num_rows == 2


async def test_what_happened_around_the_episodes_is_counted():
    lamps, stats = Lamps(lambda lease: LampEnv(crash_at=0 if lease < 2 else None)), RolloutStats()
    await run_rollout([task(1)], 2, Scripted(lambda c, s: LEFT), lamps, stats=stats, **ARGUMENTS)
    await run_rollout([task(2)], 1, Scripted(lambda c, s: LEFT), Lamps(), stats=stats, **ARGUMENTS)
    assert stats == RolloutStats(retries=2)  # these lamps keep no count of their own


async def test_hung_environment_meets_a_deadline():
    class Hung(LampEnv):
        async def step(self, action):
            await asyncio.Event().wait()

    chosen = settings(sandbox={"width": 64, "height": 64, "timeout_s": 0.01}, rollout={"retries": 0})
    got = await run_rollout(
        [task(1)],
        1,
        Scripted(lambda c, s: LEFT),
        Lamps(lambda lease: Hung()),
        iteration=0,
        settings=chosen,
        temperature=1.0,
    )
    assert got[0].trajectory.status == "crashed"
    assert "did not answer" in got[0].trajectory.error


async def test_policy_failure_stops_the_rollout_and_frees_the_environments():
    def fail(context, sampling):
        raise PolicyError("the server is gone")

    lamps = Lamps()
    with pytest.raises(PolicyError, match="the server is gone"):
        await run_rollout([task(n) for n in range(4)], 1, Scripted(fail), lamps, **ARGUMENTS)
    assert lamps.running == 0
    assert all(env.closed for env in lamps.lent)


async def test_silent_policy_meets_a_deadline():
    class Silent(Scripted):
        async def complete(self, context, sampling):
            await asyncio.Event().wait()

    chosen = settings(policy={"timeout_s": 0.01, "max_new_tokens": 24})
    with pytest.raises(PolicyTimeout, match="did not answer"):
        await run_episode(LampEnv(), Silent(lambda c, s: ""), task(1), 0, iteration=0, settings=chosen, temperature=1.0)


async def test_environment_error_leaves_run_episode_as_it_is():
    with pytest.raises(EnvError, match="the page crashed"):
        await episode(lambda c, s: LEFT, env=LampEnv(crash_at=0))
