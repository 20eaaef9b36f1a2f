"""The state before a step of a stored run, restored for many runs: by replay, or by a checkpoint where there is one."""

from __future__ import annotations

import asyncio
import dataclasses

import lamp_env
import pytest
from lamp_env import LEFT, RIGHT, LampEnv, Lamps, Scripted

from flywheel.agent.prompt import Image
from flywheel.policy.protocol import SamplingParams
from flywheel.rollout.counterfactual import (
    CounterfactualChange,
    ReplayedState,
    StateNotRestored,
    format_thought,
    play_counterfactual,
)
from flywheel.rollout.episode import run_episode
from flywheel.utils.errors import BadInput, EnvError

SETTINGS = lamp_env.settings()
TASK = lamp_env.task(1, max_steps=5)  # the lamp is on the left
WAIT = "Thought: not yet.\nAction: wait()"


class Counting(LampEnv):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.restored = 0, 0

    async def step(self, action):
        self.steps += 1
        return await super().step(action)

    async def restore(self, checkpoint):
        self.restored += 1
        return await super().restore(checkpoint)


class WithoutCheckpoints(Counting):
    checkpoint = restore = None


async def play(texts, task=TASK):
    told = iter(texts)
    policy = Scripted(lambda context, sampling: next(told))
    return await run_episode(LampEnv(), policy, task, 0, iteration=1, settings=SETTINGS, temperature=0.5)


def start(parent, at, action=None, task=TASK):
    return ReplayedState(parent.id, parent.steps, at, task, SETTINGS.policy, action)


async def go_on(parent, at, change, runs=3, policy=None, make=lambda lease: Counting(), **more):
    """Runs of one side, one after another, and the environments that they were played in."""
    lamps = Lamps(make)
    policy = policy or Scripted(lambda context, sampling: RIGHT)
    begun = start(parent, at, change.value if change.kind == "action" else None)
    asked = {"at": at, "seed": 0, "iteration": 1, "settings": SETTINGS, "temperature": 0.5, **more}
    made = [
        await play_counterfactual(parent.trajectory, change, run, f"t{run}", begun, TASK, policy, lamps, **asked)
        for run in range(runs)
    ]
    return made, lamps.lent


async def test_the_first_run_is_played_again_and_the_others_restore_a_checkpoint():
    parent = await play([WAIT, RIGHT, RIGHT, LEFT])
    made, envs = await go_on(parent, 2, CounterfactualChange("action", "click(point='<point>25 50</point>')"))
    assert [(env.steps, env.restored) for env in envs] == [(3, 0), (1, 1), (1, 1)]
    for number, one in enumerate(made):
        row = one.trajectory
        assert (row.trajectory_id, row.source, row.parent_id, row.start_step) == (
            f"t{number}",
            "counterfactual",
            parent.id,
            2,
        )
        assert [step.author for step in one.steps] == ["model", "model", "human"]
        assert [step.action for step in one.steps[:2]] == [step.action for step in parent.steps[:2]]
        assert [step.image_sha256 for step in one.steps] == [step.image_sha256 for step in parent.steps[:3]]
        assert {step.trajectory_id for step in one.steps} == {row.trajectory_id}
        assert row.reward == 1.0


async def test_where_there_is_no_checkpoint_each_run_is_played_again():
    parent = await play([WAIT, RIGHT, LEFT])
    _, envs = await go_on(parent, 2, CounterfactualChange("action", "wait()"), make=lambda lease: WithoutCheckpoints())
    assert [env.restored for env in envs] == [0, 0, 0]
    assert {env.steps for env in envs} == {5}, "two again, the changed one, and on to the limit"


@pytest.mark.parametrize("number", [0, 1])
async def test_another_screen_on_the_way_is_told(number):
    parent = await play([WAIT, RIGHT, LEFT])
    steps = list(parent.steps)
    steps[number] = dataclasses.replace(steps[number], image_sha256="0" * 64)
    changed = dataclasses.replace(parent, steps=tuple(steps))
    with pytest.raises(StateNotRestored, match=f"before step 2 cannot be restored: at step {number} .*000000000000"):
        await go_on(changed, 2, CounterfactualChange())


async def test_a_state_that_was_restored_once_and_is_not_again_is_a_fault_of_the_environment():
    """It is tried again, and then it counts as crashed: never as a failure of the model."""

    class Drifting(Counting):
        async def restore(self, checkpoint):
            return await super().restore(bytes([checkpoint[0] + 1, checkpoint[1]]))

    parent = await play([WAIT, RIGHT, LEFT])
    made, envs = await go_on(
        parent, 2, CounterfactualChange("action", "finished()"), runs=2, make=lambda lease: Drifting()
    )
    assert [one.trajectory.status for one in made] == ["completed", "crashed"]
    assert "restored before, and now it is not" in made[1].trajectory.error
    assert len(envs) == 2 + SETTINGS.rollout.retries


async def test_runs_of_one_number_have_the_same_seeds_on_both_sides():
    parent = await play([WAIT, RIGHT, LEFT])

    async def seeds(change, **more):
        policy = Scripted(lambda context, sampling: RIGHT)
        await go_on(parent, 1, change, policy=policy, **more)
        return [sampling.seed for _, sampling in policy.asked], {sampling.temperature for _, sampling in policy.asked}

    own, temperatures = await seeds(CounterfactualChange())
    assert (len(set(own)), temperatures) == (len(own), {0.5})
    assert await seeds(CounterfactualChange("temperature", "1.5")) == (own, {1.5})
    assert await seeds(CounterfactualChange("instruction", "Wait.")) == (own, {0.5})
    assert (await seeds(CounterfactualChange(), seed=1))[0] != own


async def test_another_instruction_is_what_the_model_reads_from_there_on():
    parent = await play([WAIT, RIGHT, LEFT])
    policy = Scripted(lambda context, sampling: RIGHT)
    made, _ = await go_on(
        parent, 1, CounterfactualChange("instruction", "Click the lamp twice."), runs=1, policy=policy
    )

    def read(context):
        return " ".join(part for message in context for part in message.parts if not isinstance(part, Image))

    assert all("Click the lamp twice." in read(context) for context, _ in policy.asked)
    assert made[0].trajectory.instruction == "Click the lamp twice."


async def test_a_thought_begins_the_first_answer_alone():
    parent = await play([WAIT, RIGHT, LEFT])
    policy = Scripted(lambda context, sampling: RIGHT)
    await go_on(parent, 1, CounterfactualChange("thought", "I wait."), runs=2, policy=policy)
    begins = [sampling.begins for _, sampling in policy.asked]
    assert begins == [format_thought("I wait."), *[""] * (len(begins) // 2 - 1)] * 2


async def test_runs_at_once_share_one_replay():
    parent = await play([WAIT, RIGHT, LEFT])
    begun, envs = start(parent, 2), [Counting() for _ in range(4)]

    async def bound(call, times=1):
        return await call

    results = await asyncio.gather(*(begun.begin(env, bound) for env in envs))
    assert sorted(env.steps for env in envs) == [0, 0, 0, 2]
    assert len({result.observation.screenshot for _, result in results}) == 1


def test_what_cannot_be_changed_is_refused():
    with pytest.raises(BadInput, match="'weather' cannot be changed"):
        CounterfactualChange("weather", "sun")
    for text in ("", "  ", "two\nlines"):
        with pytest.raises(BadInput, match="not one line of text"):
            format_thought(text)
    assert SamplingParams(begins=format_thought("I wait.")).begins == "Thought: I wait.\nAction: "


async def test_an_environment_that_fails_is_no_other_state():
    parent = await play([WAIT, RIGHT, LEFT])

    async def bound(call, times=1):
        return await call

    with pytest.raises(EnvError, match="the page crashed"):
        await start(parent, 2).begin(LampEnv(crash_at=1), bound)
