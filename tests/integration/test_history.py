"""What training rebuilds of a trajectory is what the policy was shown, whatever memory it was shown with."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from lamp_env import LEFT, LampEnv, Lamps, Scripted, task
from lamp_env import settings as lamp_settings
from local_server import Server, said
from night import by_day

from flywheel.agent.prompt import Image
from flywheel.envs.base import Observation
from flywheel.policy.client.language_model import ModelSummarizer, OpenAIChatModel, open_summarizer
from flywheel.policy.encoding import Encoder
from flywheel.rollout.episode import PromptHistory, run_rollout
from flywheel.store.partitions import table_from_rows
from flywheel.store.schema import Step, record_from_row, record_to_row
from flywheel.training.data import build_agent_examples

STEPS = 30
DEAD = "http://127.0.0.1:1/v1"


@pytest.fixture(scope="module")
def encoder(project) -> Encoder:
    return Encoder.from_folder(project / "models" / "base")


def settings(server: Server | None = None, **policy):
    more = {"max_new_tokens": 24, "timeout_s": 30, **policy}
    block = server.settings(retries=0).model_dump() if server else {}
    return lamp_settings(policy=more, language_model=block)


async def rolled_out(encoder: Encoder, chosen, make=LampEnv):
    """Two episodes of 30 steps that never hit; the policy counts tokens as a checkpoint's own encoder does."""

    class Counting(Scripted):
        async def complete(self, context, sampling):
            answer = await super().complete(context, sampling)
            return replace(answer, prompt_tokens=encoder.count(context))

    def answer(context, sampling) -> str:
        kind = sampling.seed % 3
        return (LEFT, "Thought: type.\nAction: type(content='milk')", "no action")[kind]

    policy = Counting(answer)
    policy.encoder = encoder
    tasks = [task(number, max_steps=STEPS, side="right") for number in (1, 2)]
    episodes = await run_rollout(
        tasks, 1, policy, Lamps(lambda lease: make()), iteration=0, settings=chosen, temperature=1.0
    )
    return episodes, policy


def same(samples, policy, encoder) -> bool:
    asked = sorted(encoder.encode(context).input_ids.tobytes() for context, _ in policy.asked)
    return sorted(sample.context.input_ids.tobytes() for sample in samples) == asked


MEMORIES = {
    "the default": {},
    "a digest by rules": {"summary_max_chars": 120, "history_n_text": 2},
    "several turns": {"history_n_images": 4, "summary_max_chars": 120, "max_context_tokens": 900},
    "too little room": {"history_n_images": 4, "summary_max_chars": 120, "max_context_tokens": 200},
    "tool calls": {"template": "tool_call", "history_n_images": 3, "functions": True, "max_context_tokens": 4000},
}


class Told(LampEnv):
    """What is seen can be read too, and grows; half of a surrogate pair is in it."""

    def _result(self, terminated: bool = False):
        result = super()._result(terminated)
        text = f"  The {self.task.params['side']} lamp is lit \ud800 after" + f" {self.clicks} clicks;" * self.clicks
        return replace(result, observation=replace(result.observation, text=text))


class Blind(Told):
    """And there is no picture."""

    def _result(self, terminated: bool = False):
        result = super()._result(terminated)
        return replace(result, observation=Observation(None, text=result.observation.text))


SEEN = [(name, LampEnv) for name in MEMORIES] + [
    (name, make) for name in ("several turns", "too little room") for make in (Told, Blind)
]


@pytest.mark.parametrize(("name", "make"), by_day(SEEN, 2))
async def test_training_sees_what_the_rollout_saw(name, make, encoder):
    chosen = settings(**MEMORIES[name])
    episodes, policy = await rolled_out(encoder, chosen, make)
    steps = [step for episode in episodes for step in episode.steps]
    trajectories = [episode.trajectory for episode in episodes]
    images = {sha: png for episode in episodes for sha, png in episode.images.items()}
    steps = [
        record_from_row("steps", Step, row)
        for row in table_from_rows("steps", [record_to_row("steps", s) for s in steps]).to_pylist()
    ]
    samples = build_agent_examples(trajectories, steps, images, encoder, chosen.policy, parse_errors=True)
    assert len(samples) == 2 * STEPS
    assert same(samples, policy, encoder)
    counts = [one.prompt_tokens for one in sorted(steps, key=lambda one: (one.trajectory_id, one.step))]
    assert [len(sample.context) for sample in samples] == counts
    assert max(counts) <= chosen.policy.max_context_tokens
    parts = [part for message in policy.asked[-1][0] for part in message.parts]
    if name == "several turns" and make is LampEnv:  # three screens before the present one: the real count was taken
        assert sum(isinstance(part, Image) for part in parts) == 4
    if make is Blind:
        assert not any(isinstance(part, Image) for part in parts)
        assert images == {}
    assert any("Observation: " in part for part in parts if isinstance(part, str)) == (make is not LampEnv)


async def test_a_digest_by_a_model_is_read_from_the_step_and_not_asked_for_again(encoder):
    """The model's answers are never the same twice, so only what was stored can give the same context."""
    answers = iter(range(1000))
    with Server(lambda asked: said(f"Record {next(answers)}.")) as server:
        chosen = settings(server, summarizer="language_model", summary_max_chars=100, history_n_text=2)
        episodes, policy = await rolled_out(encoder, chosen)
    rows = [row for episode in episodes for row in episode.steps]
    stored = [json.loads(row.memory) for row in rows if row.memory]
    assert {one["steps"] for one in stored} == {8, 16, 24}
    assert {one["by"] for one in stored} == {"stub"}
    images = {sha: png for episode in episodes for sha, png in episode.images.items()}
    dead = ModelSummarizer(OpenAIChatModel(chosen.language_model.model_copy(update={"endpoint": DEAD})), 100)
    trajectories = [episode.trajectory for episode in episodes]
    samples = build_agent_examples(
        trajectories, rows, images, encoder, chosen.policy, parse_errors=True, summarizer=dead
    )
    assert same(samples, policy, encoder)
    # What would have come next goes on from the last stored digest.
    first = episodes[0]
    history = PromptHistory(first.trajectory.instruction, first.images, chosen.policy, summarizer=dead)
    history.follow(first.steps)
    beyond = history.context(first.last_screen)
    last = json.loads(first.steps[-1].memory)
    assert f"Before: {last['steps']} steps: {last['text']}\nDone: " in beyond[0].parts[-1]


async def test_a_model_that_is_down_does_not_end_an_episode(encoder):
    with Server(lambda asked: (401, "no key")) as server:
        chosen = settings(server, summarizer="language_model", summary_max_chars=100)
        episodes, _ = await rolled_out(encoder, chosen)
    assert {episode.trajectory.steps for episode in episodes} == {STEPS}
    by = {json.loads(row.memory)["by"] for episode in episodes for row in episode.steps if row.memory}
    assert by == {"rules, since stub failed: status 401: no key"}


async def test_without_a_digest_nothing_is_stored(encoder):
    episodes, _ = await rolled_out(encoder, settings())
    assert {row.memory for episode in episodes for row in episode.steps} == {None}
    assert open_summarizer(settings()).name == "rules"
