"""What a group of RL's episodes plays: which contents, from where, and the same after a kill."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lamp_env import LEFT, RIGHT, LampEnv, Lamps, Scripted, screen, settings, task

from flywheel.config import RlSettings
from flywheel.rollout.async_pool import AsyncRolloutPool, EpisodeGroup, RolloutLog, RolloutPlan
from flywheel.rollout.episode import run_rollout
from flywheel.rollout.starts import KnownSuccess, RestoredStart
from flywheel.training.rl.groups import GroupChooser, StartDepth, start_metrics

TASKS = {f"lamp{number:03d}": task(number, max_steps=6) for number in range(3)}  # right, left, right
HIT = {"left": LEFT, "right": RIGHT}
HALF = RlSettings(restored_start_fraction=0.5, true_start_tail=0.25, steps=100, tasks_per_step=4)


class Told:
    """A sampler that draws in turn and keeps what it is told."""

    def __init__(self):
        self.drawn, self.told = 0, []

    def next(self):
        self.drawn += 1
        return TASKS[f"lamp{(self.drawn - 1) % 3:03d}"]

    def record(self, task_id, scores, successes):
        self.told.append((task_id, tuple(successes)))


def fresh(drawn, number):
    """Lamp 2 stands for a world whose tasks are the same for all seeds."""
    same = drawn.task_id == "lamp002"
    return drawn if same else replace(drawn, task_id=f"{drawn.task_id}-{number}", seed=100 + number)


def played(of, answers):
    """An episode of `of` by a policy that gives the answers in turn."""
    said = iter(answers)
    policy = Scripted(lambda context, sampling: next(said))
    (one,) = asyncio.run(run_rollout([of], 1, policy, Lamps(), iteration=1, settings=settings(), temperature=1.0))
    assert len(one.steps) == len(answers)
    return one


def known(of, answers, source="rollouts"):
    one = played(of, answers)
    steps = tuple(replace(step, sampled_logprobs=()) for step in one.steps)
    return KnownSuccess(one.id, source, of, steps)


FOUR = known(TASKS["lamp000"], [LEFT, "no action", LEFT, RIGHT])


# -- depth ------------------------------------------------------------------------------------------------------------


def test_depth_moves_away_from_the_end_while_it_is_sure_and_back_while_it_is_lost():
    """p from .5 at rate .3: .65, .755, .8285; then .57995, .405965, .2841755, .19892285, .13924600, each by hand."""
    one, seen = StartDepth(), []
    for won in (True, True, True, False, False, False, False, False):
        one.record([won] * 4, most=9)
        seen.append((one.depth, round(one.p, 8)))
    assert seen == [
        (1, 0.65),
        (2, 0.755),
        (3, 0.8285),
        (3, 0.57995),
        (3, 0.405965),
        (2, 0.2841755),
        (1, 0.19892285),
        (1, 0.139246),
    ]
    one.record([True, False], most=9)
    assert one.p == pytest.approx(0.7 * 0.139245995 + 0.15)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=8), max_size=40), st.integers(1, 6))
def test_depth_is_bounded_and_moves_by_one(groups, most):
    one = StartDepth()
    for successes in groups:
        before = one.depth
        one.record(successes, most)
        assert 1 <= one.depth <= most
        assert abs(one.depth - before) <= 1
        assert 0 <= one.p <= 1


# -- choice -----------------------------------------------------------------------------------------------------------


def chooser(rl=HALF, successes=(FOUR,), draw=None, solvable=lambda task: False, on_task=lambda task: None):
    return GroupChooser(rl, 7, successes=successes, draw_fresh=draw, solvable=solvable, on_task=on_task)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75, 1.0])
def test_the_share_of_restored_starts_is_as_set_until_the_tail(fraction):
    one = chooser(HALF.model_copy(update={"restored_start_fraction": fraction}))
    groups = [one.plan(number, TASKS["lamp000"]) for number in range(400)]
    restored = [group.start is not None for group in groups]
    assert abs(sum(restored[:300]) - 300 * fraction) <= 1
    assert not any(restored[300:])
    assert all(group.drawn == "lamp000" for group in groups)


def test_a_task_without_a_known_success_begins_at_its_beginning():
    one = chooser()
    assert all(one.plan(number, TASKS["lamp001"]) == EpisodeGroup(TASKS["lamp001"], "lamp001") for number in range(20))


def test_a_depth_of_the_whole_success_is_a_true_start_that_still_counts():
    one = chooser(HALF.model_copy(update={"restored_start_fraction": 1.0}), [known(TASKS["lamp000"], [LEFT, RIGHT])])
    depths = []
    one._turns["lamp000"] = 0.0
    for number in range(5):
        group = one.plan(number, TASKS["lamp000"])
        depths.append(group.start.depth if group.start else None)
        one.record(group, [True] * 4)
    assert depths == [1, 1, None, None, None]
    for number in range(5, 12):
        one.record(one.plan(number, TASKS["lamp000"]), [False] * 4)
    assert one.plan(12, TASKS["lamp000"]).start.depth == 1  # back from the beginning


def test_the_first_source_that_knows_the_task_is_taken():
    shown = replace(FOUR, trajectory_id="shown", source="recordings")
    order = ["recordings", "solver", "rollouts"]
    every = HALF.model_copy(update={"restored_start_fraction": 1.0, "start_sources": order})
    one = chooser(every, [FOUR, shown], solvable=lambda task: task.task_id == "lamp001")
    starts = [one.plan(number, TASKS["lamp000"]).start for number in (1, 2)]
    assert {start.parent_id for start in starts if start} == {"shown"}
    solved = [one.plan(number, TASKS["lamp001"]).start for number in (1, 2)]
    assert solved[1] == RestoredStart(None, 1)
    one = chooser(every, [FOUR, shown])
    one.plan(1, TASKS["lamp000"])
    one.drop(one.plan(2, TASKS["lamp000"]), "the screen differs")
    assert one.plan(3, TASKS["lamp000"]).start.parent_id == FOUR.trajectory_id
    assert one.dropped == Counter({"the screen differs": 1})


def test_with_fresh_contents_a_kind_shares_its_successes_and_the_solver_plays_fresh_ones():
    made = []
    every = HALF.model_copy(update={"restored_start_fraction": 1.0})
    one = chooser(every, draw=fresh, on_task=made.append)
    one.plan(0, TASKS["lamp001"])
    group = one.plan(1, TASKS["lamp001"])
    assert (group.task, group.drawn, group.start) == (TASKS["lamp000"], "lamp001", RestoredStart(FOUR, 1))
    solving = every.model_copy(update={"start_sources": ["solver"]})
    one = chooser(solving, draw=fresh, on_task=made.append, solvable=lambda task: True)
    one.plan(4, TASKS["lamp001"])
    group = one.plan(5, TASKS["lamp001"])
    assert (group.task.task_id, group.start) == ("lamp001-5", RestoredStart(None, 1))
    assert group.task == made[-1]


# -- the log ----------------------------------------------------------------------------------------------------------


def test_a_resumed_run_draws_the_same_fresh_tasks_and_tells_the_drawn_ones(tmp_path):
    plan, made = RolloutPlan(2, 4, 2, 1, 5, whole_groups=True), []
    source, plain = Told(), RlSettings(steps=2, tasks_per_step=2)
    log = RolloutLog(tmp_path, "key", source, TASKS, plan, 0, chooser(plain, draw=fresh, on_task=made.append))
    asked = [log.admit_episode(8) for _ in range(8)]
    assert [request.task.task_id for request in asked[::2]] == ["lamp000-0", "lamp001-1", "lamp002", "lamp000-3"]
    assert [request.task for request in asked[::2] if request.task.task_id != "lamp002"] == made
    assert [request.sample for request in asked[:4]] == [0, 1, 0, 1]
    for request in asked[:4]:
        log.accept(request, played(request.task, [HIT[request.task.params["side"]]]), 1.0, request.sample == 0)
    assert [request.ordinal for request in log.take_batch()] == [0, 1, 2, 3]
    assert source.told == [("lamp000", (True, False)), ("lamp001", (True, False))]

    told, repeated = Told(), []
    again = RolloutLog(tmp_path, "key", told, TASKS, plan, 0, chooser(plain, draw=fresh, on_task=repeated.append))
    assert (repeated, told.told) == (made, source.told)
    assert [request.task for request in again.take_batch()] == [request.task for request in asked[:4]]
    assert [again.admit_episode(8) for _ in range(4)] == asked[4:]


# -- the pool ---------------------------------------------------------------------------------------------------------

ALL = RlSettings(restored_start_fraction=1.0, true_start_tail=0.0, steps=2, tasks_per_step=2, group_size=2)


class One(Told):
    def next(self):
        return TASKS["lamp000"]


class Versioned(Scripted):
    weight_version = "w0"


def grade(task, episode):
    hit = json.loads(episode.trajectory.final_state)["hit"]
    return float(hit), hit


def pool_of(folder, policy, lamps, planner, *, ended=lambda episode: None, plan=None, **rollout):
    plan = plan or RolloutPlan(2, 4, 2, 1, 5, whole_groups=True)
    log = RolloutLog(folder, "key", One(), TASKS, plan, 0, planner)
    chosen = settings(rollout={"retries": 0, "max_concurrent": 4} | rollout)
    playing = {"grade": grade, "iteration": 1, "settings": chosen, "temperature": 1.0, "where": "rl games"}
    return AsyncRolloutPool(log, policy, lamps, on_episode=ended, **playing)


def at_depth(depth, success=FOUR, rl=ALL):
    one = chooser(rl, [success])
    one._depths[success.task.task_id].depth = depth
    one._turns[success.task.task_id] = 0.0
    return one


def by_side(context, sampling):
    return RIGHT if sampling.seed % 2 else LEFT


async def test_an_episode_begins_within_the_success_as_if_the_policy_had_taken_its_steps(tmp_path):
    policy, lamps = Versioned(by_side), Lamps()
    async with pool_of(tmp_path, policy, lamps, at_depth(2)) as pool:
        batch = await asyncio.wait_for(pool.next_batch(), 30)
    assert len(batch.episodes) == 4
    for _, one in batch.episodes:
        trajectory, parent = one.trajectory, FOUR.steps
        assert (trajectory.parent_id, trajectory.start_step) == (FOUR.trajectory_id, 2)
        assert trajectory.steps == len(one.steps) == 2 + len(one.own_steps)
        repeated = one.steps[:2]
        kept = ("author", "thought", "action", "raw_text", "parse_error", "image_sha256", "reward", "memory")
        assert [[getattr(step, name) for name in kept] for step in repeated] == [
            [getattr(step, name) for name in kept] for step in parent[:2]
        ]
        assert {step.token_ids for step in repeated} == {step.logprobs for step in repeated} == {None}
        assert {step.trajectory_id for step in one.steps} == {one.id}
        assert [step.step for step in one.steps] == list(range(len(one.steps)))
        assert one.own_steps[0].image_sha256 == hashlib.sha256(screen("right", 1)).hexdigest()
        assert all(step.token_ids and step.version == 0 for step in one.own_steps)
        shown = {step.image_sha256 for step in one.steps}
        assert shown | {trajectory.final_image_sha256} == set(one.images)
    # The contexts are those of the parent's own policy at the same step.
    said = iter([LEFT, "no action", LEFT, RIGHT])
    first = Versioned(lambda context, sampling: next(said))
    await run_rollout([TASKS["lamp000"]], 1, first, Lamps(), iteration=1, settings=settings(), temperature=1.0)
    wanted = first.asked[2][0]
    assert {one.id for _, one in batch.episodes} <= {
        said.session for context, said in policy.asked if context == wanted
    }
    # Each episode clicks its way there.
    own = sum(step.action is not None for _, one in batch.episodes for step in one.own_steps)
    clicks = sum(len(env.actions) for env in lamps.lent[:4])
    assert clicks == own + 4 * 1
    assert start_metrics(batch)["start_depth_fraction"] == 0.5


class Unsaved:
    """A lamp. off: clicks that it counts too many after a reset."""

    def __init__(self, off=0):
        self.lamp, self.off = LampEnv(), off

    async def reset(self, task, seed):
        await self.lamp.reset(task, seed)
        self.lamp.clicks = self.off
        return self.lamp._result()

    async def step(self, action):
        return await self.lamp.step(action)

    async def close(self):
        await self.lamp.close()


async def test_a_success_whose_screen_differs_is_dropped_by_name_and_stays_dropped(tmp_path):
    steps = list(FOUR.steps)
    steps[2] = replace(steps[2], image_sha256="0" * 64)
    planner = at_depth(2, replace(FOUR, steps=tuple(steps)))
    async with pool_of(tmp_path, Versioned(by_side), Lamps(), planner) as pool:
        batch = await asyncio.wait_for(pool.next_batch(), 30)
        assert planner.dropped == Counter({"the screen differs": len({r.group for r, _ in batch.episodes})})
        log = pool.rollout_log
        assert log.source.told == [("lamp000", tuple(o.success for o in batch.outcomes[n : n + 2])) for n in (0, 2)]
    assert {one.trajectory.start_step for _, one in batch.episodes} == {None}
    assert start_metrics(batch) == {"restored_fraction": 0.0} | {
        name: value for name, value in start_metrics(batch).items() if name == "live_true_starts"
    }
    resumed = at_depth(2, replace(FOUR, steps=tuple(steps)))
    again = RolloutLog(tmp_path, "key", One(), TASKS, log.plan, 0, resumed)
    assert resumed.dropped == planner.dropped
    assert [request.start for request in again.take_batch()] == [None] * 4
    assert resumed.plan(99, TASKS["lamp000"]) == planner.plan(99, TASKS["lamp000"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"action": "click(nowhere)"}, "an action cannot be read"),
        ({"action": "click(point='<point>75 50</point>')"}, "the task is over before the start"),
    ],
)
async def test_a_success_that_cannot_be_repeated_is_dropped_by_name(tmp_path, change, reason):
    steps = (replace(FOUR.steps[0], **change), *FOUR.steps[1:])
    planner = at_depth(2, replace(FOUR, steps=steps))
    async with pool_of(tmp_path, Versioned(by_side), Lamps(), planner) as pool:
        batch = await asyncio.wait_for(pool.next_batch(), 30)
    assert set(planner.dropped) == {reason}
    assert {one.trajectory.parent_id for _, one in batch.episodes} == {None}


async def test_a_place_that_was_reached_and_then_is_not_is_a_failure_of_the_environment(tmp_path):
    """Of a group the second environment differs: its episode is given up, and no mean has it."""
    ended = []
    lamps = Lamps(lambda lease: Unsaved(off=int(lease == 1)))
    planner = at_depth(2)
    async with pool_of(tmp_path, Versioned(by_side), lamps, planner, ended=ended.append, max_concurrent=1) as pool:
        batch = await asyncio.wait_for(pool.next_batch(), 30)
    assert [one.trajectory.status for one in ended].count("crashed") == 1
    assert "was reached before" in next(one.trajectory.error for one in ended if one.trajectory.status == "crashed")
    assert not planner.dropped
    assert [request.group for request, _ in batch.episodes] == [0, 1, 1]
    assert planner._depths["lamp000"].p == pytest.approx(expected_p(batch))


def expected_p(batch):
    p = 0.5
    for group in (0, 1):
        won = [
            o.success for (request, _), o in zip(batch.episodes, batch.outcomes, strict=True) if request.group == group
        ]
        p += 0.3 * (sum(won) / len(won) - p)
    return p


async def test_a_killed_run_goes_on_with_the_same_starts(tmp_path):
    whole, policy = at_depth(2), Versioned(by_side)
    async with pool_of(tmp_path / "whole", policy, Lamps(), whole) as pool:
        first = await asyncio.wait_for(pool.next_batch(), 30)
        pool.advance()
        second = await asyncio.wait_for(pool.next_batch(), 30)
    log = pool.rollout_log
    again = RolloutLog(tmp_path / "whole", "key", One(), TASKS, log.plan, 1, planner := at_depth(2))
    assert [request.start for request in again.take_batch()] == [request.start for request, _ in second.episodes]
    assert planner._depths == whole._depths
    assert [request.start.depth for request, _ in first.episodes] == [2] * 4
    lines = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert [line["start"] for line in lines if "group" in line][:2] == [[FOUR.trajectory_id, 2]] * 2
