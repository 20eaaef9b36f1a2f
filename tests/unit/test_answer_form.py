"""The formal grammar of answers: all of it is read, what is written is of it, and a constrained policy keeps to it, on
both sides of RL's ratio."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lamp_env import screen
from night import NIGHT

from flywheel.agent import actions as act
from flywheel.agent.actions import ParseError, Point
from flywheel.agent.grammar import Grammar, format_response, grid_space
from flywheel.agent.parsing.parser import parse_response, serialise_action
from flywheel.agent.prompt import build_context
from flywheel.config import PolicySettings, RlSettings, parse_settings
from flywheel.policy import open_policy
from flywheel.policy.encoding import Encoder
from flywheel.policy.guided_decoding import AnswerConstraint, build_lark_grammar, integers_regex
from flywheel.policy.model import load_model, make_tiny_model, save_checkpoint
from flywheel.policy.protocol import SamplingParams
from flywheel.training.modeling.policy_forward import PolicyForward
from flywheel.utils.errors import BadInput, PolicyError

POLICIES = {
    "minimal": PolicySettings(guided_decoding="always"),
    "point of 1000, functions": PolicySettings(
        guided_decoding="always", template="point", coordinates=1000, functions=True
    ),
    "fractions, phone": PolicySettings(
        guided_decoding="always", template="point", coordinate_format="norm1", actions="mobile"
    ),
    "game of 37 cells": PolicySettings(guided_decoding="always", template="point", coordinates=37, actions="game"),
}
THOUGHT = "I look for the red “mug”, 2 of 3: it's there."


@pytest.fixture(scope="module")
def encoder(project) -> Encoder:
    return Encoder.from_folder(project / "models" / "base")


@pytest.fixture(scope="module", params=POLICIES)
def held(request, encoder) -> tuple[PolicySettings, AnswerConstraint]:
    policy = POLICIES[request.param]
    return policy, AnswerConstraint(encoder, len(encoder.tokenizer), policy)


@given(st.integers(0, 120_000), st.integers(0, 130_000))
def test_numbers_up_to_the_last(last, number):
    assert bool(re.fullmatch(integers_regex(last), str(number))) == (number <= last)
    assert not re.fullmatch(integers_regex(last), f"0{number}")


@pytest.mark.parametrize("seed", range(60 if NIGHT else 10))
def test_whatever_may_be_written_is_an_action(held, encoder, seed):
    """Any allowed token at each place: a text, and where it ends an action."""
    policy, constraint = held
    draw, state, written = random.Random(seed), constraint.begin(), []
    closing = encoder.tokenizer.convert_tokens_to_ids(["\nAction: ", "')"])
    for place in range(600):
        allowed = np.flatnonzero(~state.blocked()).tolist()
        close = [token for token in closing if token in allowed and place > draw.randrange(40)]
        token = draw.choice(close or allowed)
        if token == encoder.end_id:
            break
        written.append(token)
        state.add(token)
    else:
        pytest.fail(f"no end: {encoder.decode(written)!r}")
    text = encoder.decode(written)
    found = parse_response(text, Grammar.of(policy))
    assert not isinstance(found.action, ParseError), (text, found.action)
    assert found.thought == text.partition("\nAction: ")[0].removeprefix("Thought: ").strip()


fractions = st.floats(0, 1, exclude_max=True)
points = st.builds(Point, fractions, fractions)
keys = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.just("\n"), min_size=1, max_size=60)
written = st.one_of(
    st.builds(act.Click, points),
    st.builds(act.Drag, points, points),
    st.builds(act.Scroll, points, st.sampled_from(["up", "down", "left", "right"])),
    st.builds(act.Hotkey, st.lists(keys, min_size=1, max_size=3, unique=True).map(tuple)),
    st.builds(act.Press, keys),
    st.builds(act.Type, texts),
    st.builds(act.Finished, texts | st.just("")),
    st.sampled_from([act.Wait(), act.CallUser(), act.NavigateBack()]),
)


@given(written, st.sampled_from(["minimal", "game of 37 cells"]))
def test_what_is_written_is_of_the_form(encoder, action, name):
    policy = POLICIES[name]
    if isinstance(action, act.NavigateBack) and policy.actions == "game":
        return
    text = format_response(THOUGHT, serialise_action(action, Grammar.of(policy)))
    state = AnswerConstraint(encoder, len(encoder.tokenizer), policy).begin()
    for token in encoder.encode_text(text):  # with the end
        assert not state.blocked()[token], (text, encoder.decode([token]))
        state.add(token)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, encoder):
    """A model that has learnt nothing: what it writes is noise."""
    path = tmp_path_factory.mktemp("guided_decoding") / "model"
    save_checkpoint(make_tiny_model(3), encoder, path)
    return path


async def answers(folder, policy, temperature):
    opened = open_policy(folder, policy)
    contexts = [build_context(f"Click lamp {n}.", (), screen("left", n), policy) for n in range(6)]
    try:
        return contexts, [
            await opened.complete(context, SamplingParams(temperature, policy.max_new_tokens, seed, action=True))
            for seed, context in enumerate(contexts)
        ]
    finally:
        await opened.close()


async def test_noise_becomes_actions_and_the_trainer_counts_as_the_policy_did(folder, encoder):
    policy = PolicySettings(guided_decoding="always", max_new_tokens=48, max_context_tokens=512, device="cpu")
    contexts, found = await answers(folder, policy, 0.7)
    assert sum(one.finished for one in found) >= 2
    assert not any(isinstance(parse_response(one.text, 100).action, ParseError) for one in found if one.finished)
    # A thought leaves room for an action: what is cut off is text that an action types.
    cut = [one.text for one in found if not one.finished]
    assert [text for text in cut if not re.search(r"\nAction: \w+\(\w+=('[^']*)?$", text)] == []
    _, free = await answers(folder, policy.model_copy(update={"guided_decoding": "never"}), 0.7)
    assert all(
        isinstance(parse_response(one.text, 100).action, ParseError) for one in free
    )  # so it is the constraint's doing

    model = load_model(folder)
    constraint = AnswerConstraint(encoder, model.config.get_text_config().vocab_size, policy)
    for rl in (RlSettings(), RlSettings(pack_tokens=0, micro_batch=4)):
        reader = PolicyForward(load_model(folder), constraint)
        items = [
            reader.encode_example(encoder.encode(c), one.token_ids) for c, one in zip(contexts, found, strict=True)
        ]
        items.append(reader.encode_example(encoder.encode(contexts[0]), (0,), sampled=False))
        seen = {}
        for part in reader.split_into_micro_batches(items, rl):
            with torch.no_grad():
                _, entropy, tempered, natural = reader(part, 0.7, 1.0)
            assert torch.isfinite(entropy).all()
            cuts = np.cumsum([len(items[member].response) for member in part.members])[:-1].tolist()
            for member, *logs in zip(
                part.members, *(np.split(p.numpy(), cuts) for p in (tempered, natural)), strict=True
            ):
                seen[member] = logs
        for number, one in enumerate(found):
            np.testing.assert_allclose(seen[number][0], one.sampled_logprobs, atol=2e-4)
            np.testing.assert_allclose(seen[number][1], one.logprobs, atol=2e-4)
    plain = PolicyForward(load_model(folder))
    (part,) = plain.split_into_micro_batches(
        [plain.encode_example(encoder.encode(contexts[0]), found[0].token_ids)], RlSettings()
    )
    with torch.no_grad():
        assert np.abs(plain(part, 0.7)[2].numpy() - found[0].sampled_logprobs).max() > 1  # else nothing was proved


async def test_an_answer_begins_with_a_given_thought(folder):
    """Its tokens were not chosen, so their log-probability is 0; what follows is sampled."""
    policy = PolicySettings(guided_decoding="always", max_new_tokens=48, max_context_tokens=512, device="cpu")
    context = build_context("Click the lamp.", (), screen("left", 1), policy)
    begins = format_response(THOUGHT, "")
    opened = open_policy(folder, policy)
    try:
        asked = [SamplingParams(0.7, 48, seed, action=True, begins=begins) for seed in range(3)]
        for one in [await opened.complete(context, sampling) for sampling in asked]:
            assert one.text.startswith(begins)
            given = len(opened.encoder.encode_beginning(begins))
            assert given > 5
            assert set(one.logprobs[:given]) == {0.0}
            assert min(one.logprobs[given:]) < -1, "noise is not certain of an action"
        for wrong in ("Thought: a\nAction: jump", "I think", "Thought: (a)\nAction: "):
            with pytest.raises(BadInput, match="no answer of the action grammar begins with that text"):
                await opened.complete(context, SamplingParams(0.7, 48, action=True, begins=wrong))
        with pytest.raises(BadInput, match="only an action that guided decoding constrains"):
            await opened.complete(context, SamplingParams(0.7, 48, begins=begins))
    finally:
        await opened.close()


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (
            {"template": "ui_tars_1_0", "coordinate_format": "norm1000"},
            "policy.guided_decoding always goes with policy.template minimal or point",
        ),
        ({"template": "point", "coordinate_format": "pixels"}, "policy.coordinate_format grid or norm1, not pixels"),
        ({"thinks": True}, "policy.thinks false, not true"),
        ({"backend": "openai", "endpoint": "http://127.0.0.1:1"}, "policy.backend transformers, not openai"),
    ],
)
def test_what_cannot_be_constrained_is_refused(policy, said):
    with pytest.raises(BadInput, match=re.escape(said)):
        parse_settings({"policy": {"guided_decoding": "always", **policy}}, where="params.yaml")


def test_answers_are_held_to_their_form_where_that_can_be():
    assert PolicySettings().holds_form
    assert not PolicySettings(guided_decoding="never").holds_form
    for other in (
        {"template": "ui_tars_1_0", "coordinate_format": "norm1000"},
        {"thinks": True},
        {"backend": "openai"},
    ):
        assert not PolicySettings(**other).holds_form


@pytest.mark.exhaustive
async def test_other_answers_than_actions_are_free(folder):
    """`flywheel model serve` and the base's questions ask the same policy for texts."""
    policy = PolicySettings(max_new_tokens=40, max_context_tokens=512, device="cpu")
    opened, free = (
        open_policy(folder, policy),
        open_policy(folder, policy.model_copy(update={"guided_decoding": "never"})),
    )
    context = build_context("What does it say?", (), screen("left", 1), policy)
    try:
        assert await opened.complete(context, SamplingParams(0.7, 40, 1)) == await free.complete(
            context, SamplingParams(0.7, 40, 1)
        )
        acted = await opened.complete(context, SamplingParams(0.7, 40, 1, action=True))
        assert acted != await free.complete(context, SamplingParams(0.7, 40, 1, action=True))
    finally:
        await opened.close()
        await free.close()


def test_a_form_that_is_not_written_is_refused():
    with pytest.raises(BadInput, match="tool_call cannot be constrained"):
        build_lark_grammar(Grammar("tool_call", grid_space(1000)), 100)


def test_a_token_that_is_not_of_the_form_is_an_error_and_no_end(encoder):
    state = AnswerConstraint(encoder, len(encoder.tokenizer), POLICIES["minimal"]).begin()
    for token in encoder.encode_text("Thought: I click it.\nAction: click(point='<point>12 ")[:-1]:  # without the end
        state.add(token)
    other = encoder.tokenizer.convert_tokens_to_ids("\nAction: ")
    assert state.blocked()[other]
    with pytest.raises(PolicyError, match=f"token {other} is not of the form"):
        state.add(other)


def test_an_answer_may_end_only_where_its_action_does(encoder):
    constraint = AnswerConstraint(encoder, len(encoder.tokenizer), POLICIES["minimal"])
    whole = encoder.encode_text("Thought: I click it.\nAction: click(point='<point>12 34</point>')")
    early = [*whole[:-4], encoder.end_id]
    for _ in range(2):  # the second time what the first one reached is known
        with pytest.raises(PolicyError, match="ends before its action does"):
            constraint.blocked(early)
        rows = np.unpackbits(constraint.blocked([*whole, whole[0]]), axis=1)
        assert rows[-2].sum() == len(encoder.tokenizer) - 1  # the end alone
        assert not rows[-1].any()  # behind the end nothing is blocked
