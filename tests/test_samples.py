"""Training samples are what the rollout saw and sampled."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lamps import LEFT, RIGHT, Lamps, Scripted, screen, task
from lamps import settings as lamp_settings

from flywheel.errors import DataError
from flywheel.policy.encoding import Encoder
from flywheel.rollout.pool import rollout
from flywheel.schema import from_row, to_row
from flywheel.settings import Supervised
from flywheel.store.partitions import from_rows
from flywheel.training.samples import Sample, agent_samples, general_samples, joined, mix

S = lamp_settings()


@pytest.fixture(scope="module")
def encoder(project) -> Encoder:
    return Encoder.from_folder(project / "models" / "base")


async def rolled_out(answer):
    policy = Scripted(answer)
    episodes = await rollout([task(1), task(2)], 1, policy, Lamps(), iteration=0, settings=S, temperature=1.0)
    images = {sha: png for e in episodes for sha, png in e.images.items()}
    return [e.trajectory for e in episodes], [s for e in episodes for s in e.steps], images, policy


async def test_prompts_are_those_of_the_rollout(encoder):
    """Through the Parquet schema and back, every prompt equals one the policy was asked, token for token."""
    trajectories, steps, images, policy = await rolled_out(lambda context, sampling: RIGHT)
    back = [
        [from_row(table, type(one), row) for row in from_rows(table, [to_row(table, one) for one in ones]).to_pylist()]
        for table, ones in (("trajectories", trajectories[::-1]), ("steps", steps[::-1]))
        for one in ones[:1]
    ]
    samples = agent_samples(*back, images, encoder, S.policy)
    assert [(s.trajectory_id, s.step) for s in samples] == sorted((r.trajectory_id, r.step) for r in steps)
    asked = {(e.input_ids.tobytes(), e.pixel_values.tobytes()) for e in (encoder.encode(c) for c, _ in policy.asked)}
    assert {(s.context.input_ids.tobytes(), s.context.pixel_values.tobytes()) for s in samples} == asked
    for sample in samples:
        assert sample.response == tuple(map(ord, RIGHT))  # as sampled, not re-tokenised
        assert sample.logprobs == (-0.5,) * len(RIGHT)
        assert (sample.domain, sample.weight) == ("games", 1.0)


async def test_broken_steps_are_for_rl_alone(encoder):
    first = set()

    def answer(context, sampling):
        texts = [part for part in context[-1].parts if isinstance(part, str)]
        seen = (str(texts), len(context))
        return LEFT if seen in first or first.add(seen) else "nothing"

    trajectories, steps, images, _ = await rolled_out(answer)
    broken = [s for s in steps if s.parse_error]
    assert broken
    every = agent_samples(trajectories, steps, images, encoder, S.policy, parse_errors=True)
    sound = agent_samples(trajectories, steps, images, encoder, S.policy)
    assert len(every) == len(steps)
    assert len(sound) == len(steps) - len(broken)
    # The broken step stays in the history of those after it.
    assert {s.context.input_ids.tobytes() for s in sound} <= {s.context.input_ids.tobytes() for s in every}


async def test_a_slip_is_not_imitated_and_stays_in_the_history(encoder):
    trajectories, steps, images, _ = await rolled_out(lambda context, sampling: LEFT)
    later = next(step for step in steps if step.step > 0)
    slip = {(later.trajectory_id, later.step - 1)}
    marked = [replace(step, slip=(step.trajectory_id, step.step) in slip) for step in steps]
    every = {(s.trajectory_id, s.step): s for s in agent_samples(trajectories, steps, images, encoder, S.policy)}
    sound = {(s.trajectory_id, s.step): s for s in agent_samples(trajectories, marked, images, encoder, S.policy)}
    assert every.keys() - sound.keys() == slip
    assert all(s.context.input_ids.tobytes() == every[name].context.input_ids.tobytes() for name, s in sound.items())
    assert len(agent_samples(trajectories, marked, images, encoder, S.policy, parse_errors=True)) == len(steps)


async def test_human_steps_are_encoded_from_their_text(encoder):
    trajectories, steps, images, _ = await rolled_out(lambda context, sampling: LEFT)
    human = [replace(s, token_ids=None, logprobs=None, author="human") for s in steps]
    names = {t.trajectory_id: 0.25 for t in trajectories[:1]}
    samples = agent_samples(trajectories, human, images, encoder, S.policy, weights=names)
    assert {s.response for s in samples} == {tuple(encoder.encode_text(LEFT))}
    assert samples[0].response[-1] == encoder.end_id
    assert all(s.logprobs is None for s in samples)
    assert {s.weight for s in samples} == {0.25, 1.0}


async def test_missing_screen_is_named(encoder):
    trajectories, steps, _, _ = await rolled_out(lambda context, sampling: LEFT)
    with pytest.raises(DataError, match=f"screen {steps[0].image_sha256[:12]} is missing"):
        agent_samples(trajectories[:1], steps[:1], {}, encoder, S.policy)


def test_general_samples(encoder):
    images = {"a": screen("left"), "b": screen("right")}
    rows = [
        {"sample_id": f"g{n}", "kind": "where", "image_sha256": name, "instruction": "Which side?", "response": name}
        for n, name in ((2, "b"), (1, "a"))
    ]
    samples = general_samples(from_rows("general", rows).to_pylist(), images, encoder, S.policy)
    assert [s.trajectory_id for s in samples] == ["g1", "g2"]
    assert [s.response for s in samples] == [tuple(encoder.encode_text(text)) for text in "ab"]
    assert {s.domain for s in samples} == {"general"}


def plain(kind: str, n: int) -> list[Sample]:
    return [Sample(None, (1,), None, f"{kind}{i}", 0, kind) for i in range(n)]


@given(
    weights=st.lists(st.sampled_from([0.02, 0.5, 1.0]), min_size=1, max_size=30),
    general=st.integers(1, 30),
    n=st.integers(1, 100),
    fraction=st.floats(0, 1),
    repeats=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_mix_holds_its_proportion_and_each_sample_its_weight(weights, general, n, fraction, repeats, seed):
    block = Supervised(samples=n, agent_fraction=fraction, max_repeats=repeats)
    agent = [replace(one, weight=w) for one, w in zip(plain("agent", len(weights)), weights, strict=True)]
    chosen = mix(agent, plain("general", general), block, seed)
    assert chosen == mix(agent, plain("general", general), block, seed)
    of_agent = min(round(n * fraction), repeats * len(agent))
    counts = Counter(sample.domain for sample in chosen)
    assert (counts["agent"], len(chosen)) == (of_agent, n)
    times = Counter(sample.trajectory_id for sample in chosen)
    for source, size in ((agent, of_agent), (plain("general", general), n - of_agent)):
        total = sum(sample.weight for sample in source)
        for sample in source:
            assert abs(times[sample.trajectory_id] - size * sample.weight / total) < 1 + 1e-9


def test_mix_of_one_source_is_filled_by_it_and_said(caplog):
    block = Supervised(samples=10, agent_fraction=0.8)
    assert {s.domain for s in mix([], plain("general", 3), block, 0)} == {"general"}
    assert "there are no agent samples" in caplog.text
    assert len(mix(plain("agent", 3), [], block, 0)) == 10
    assert mix([], [], block, 0) == []


@given(own=st.integers(1, 30), people=st.integers(1, 30), share=st.floats(0, 0.95))
def test_demonstrations_have_their_share_whatever_their_number(own, people, share):
    both = joined(plain("own", own), [replace(one, weight=0.3) for one in plain("people", people)], share)
    total = sum(one.weight for one in both)
    assert sum(one.weight for one in both if one.domain == "people") == pytest.approx(share * total)
    assert len(both) == own + people


def test_either_alone_is_all_there_is():
    assert joined(plain("own", 2), [], 0.5) == plain("own", 2)
    assert joined([], plain("people", 2), 0.5) == plain("people", 2)
