"""Training samples are what the rollout saw and sampled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lamp_env import LEFT, RIGHT, Lamps, Scripted, screen, task
from lamp_env import settings as lamp_settings

from flywheel.policy.encoding import Encoder
from flywheel.rollout.episode import run_rollout
from flywheel.store.partitions import table_from_rows
from flywheel.store.schema import record_from_row, record_to_row
from flywheel.training.data import build_agent_examples, build_general_examples
from flywheel.utils.errors import DataError

S = lamp_settings()


@pytest.fixture(scope="module")
def encoder(project) -> Encoder:
    return Encoder.from_folder(project / "models" / "base")


async def rolled_out(answer):
    policy = Scripted(answer)
    episodes = await run_rollout([task(1), task(2)], 1, policy, Lamps(), iteration=0, settings=S, temperature=1.0)
    images = {sha: png for e in episodes for sha, png in e.images.items()}
    return [e.trajectory for e in episodes], [s for e in episodes for s in e.steps], images, policy


async def test_prompts_are_those_of_the_rollout(encoder):
    """Through the Parquet schema and back, every prompt equals one the policy was asked, token for token."""
    trajectories, steps, images, policy = await rolled_out(lambda context, sampling: RIGHT)
    back = [
        [
            record_from_row(table, type(one), row)
            for row in table_from_rows(table, [record_to_row(table, one) for one in ones]).to_pylist()
        ]
        for table, ones in (("trajectories", trajectories[::-1]), ("steps", steps[::-1]))
        for one in ones[:1]
    ]
    samples = build_agent_examples(*back, images, encoder, S.policy)
    assert [(s.trajectory_id, s.step) for s in samples] == sorted((r.trajectory_id, r.step) for r in steps)
    asked = {(e.input_ids.tobytes(), e.pixel_values.tobytes()) for e in (encoder.encode(c) for c, _ in policy.asked)}
    assert {(s.context.input_ids.tobytes(), s.context.pixel_values.tobytes()) for s in samples} == asked
    for sample in samples:
        assert sample.response == tuple(map(ord, RIGHT))  # as sampled, not re-tokenised
        assert sample.logprobs == (-0.5,) * len(RIGHT)
        assert sample.domain == "games"


async def test_broken_steps_are_for_rl_alone(encoder):
    first = set()

    def answer(context, sampling):
        texts = [part for part in context[-1].parts if isinstance(part, str)]
        seen = (str(texts), len(context))
        return LEFT if seen in first or first.add(seen) else "nothing"

    trajectories, steps, images, _ = await rolled_out(answer)
    broken = [s for s in steps if s.parse_error]
    assert broken
    every = build_agent_examples(trajectories, steps, images, encoder, S.policy, parse_errors=True)
    sound = build_agent_examples(trajectories, steps, images, encoder, S.policy)
    assert len(every) == len(steps)
    assert len(sound) == len(steps) - len(broken)
    # The broken step stays in the history of those after it.
    assert {s.context.input_ids.tobytes() for s in sound} <= {s.context.input_ids.tobytes() for s in every}


async def test_a_slip_is_not_imitated_and_stays_in_the_history(encoder):
    trajectories, steps, images, _ = await rolled_out(lambda context, sampling: LEFT)
    later = next(step for step in steps if step.step > 0)
    slip = {(later.trajectory_id, later.step - 1)}
    marked = [replace(step, misclick=(step.trajectory_id, step.step) in slip) for step in steps]
    every = {(s.trajectory_id, s.step): s for s in build_agent_examples(trajectories, steps, images, encoder, S.policy)}
    sound = {
        (s.trajectory_id, s.step): s for s in build_agent_examples(trajectories, marked, images, encoder, S.policy)
    }
    assert every.keys() - sound.keys() == slip
    assert all(s.context.input_ids.tobytes() == every[name].context.input_ids.tobytes() for name, s in sound.items())
    assert len(build_agent_examples(trajectories, marked, images, encoder, S.policy, parse_errors=True)) == len(steps)


async def test_human_steps_are_encoded_from_their_text(encoder):
    trajectories, steps, images, _ = await rolled_out(lambda context, sampling: LEFT)
    human = [replace(s, token_ids=None, logprobs=None, author="human") for s in steps]
    samples = build_agent_examples(trajectories, human, images, encoder, S.policy)
    assert {s.response for s in samples} == {tuple(encoder.encode_text(LEFT))}
    assert samples[0].response[-1] == encoder.end_id
    assert all(s.logprobs is None for s in samples)


async def test_missing_screen_is_named(encoder):
    trajectories, steps, _, _ = await rolled_out(lambda context, sampling: LEFT)
    with pytest.raises(DataError, match=f"screen {steps[0].image_sha256[:12]} is missing"):
        build_agent_examples(trajectories[:1], steps[:1], {}, encoder, S.policy)


def test_general_samples(encoder):
    images = {"a": screen("left"), "b": screen("right")}
    rows = [
        {"sample_id": f"g{n}", "kind": "where", "image_sha256": name, "instruction": "Which side?", "response": name}
        for n, name in ((2, "b"), (1, "a"))
    ]
    samples = build_general_examples(table_from_rows("grounding_examples", rows).to_pylist(), images, encoder, S.policy)
    assert [s.trajectory_id for s in samples] == ["g1", "g2"]
    assert [s.response for s in samples] == [tuple(encoder.encode_text(text)) for text in "ab"]
    assert {s.domain for s in samples} == {"general"}
