"""The context of a step: what is kept in full, what as a line, and what goes first when it gets long."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import pytest
from checkpoints import make
from hypothesis import given, settings
from hypothesis import strategies as st
from night import examples
from PIL import Image as Picture

from flywheel.agent.history import EpisodeMemory, PastStep, summarise_step
from flywheel.agent.prompt import Image, Message, build_context, count_tokens_upper_bound
from flywheel.config import PolicySettings
from flywheel.policy.encoding import Encoder
from flywheel.utils.errors import BadInput

BASE = Path(__file__).resolve().parents[2] / "models" / "base"


@cache
def screen(shade: int, width: int = 224, height: int = 224) -> bytes:
    out = io.BytesIO()
    Picture.new("RGB", (width, height), (shade, shade, shade)).save(out, format="PNG")
    return out.getvalue()


def past(number: int, result: str = "") -> PastStep:
    return PastStep(screen(number), f"I did {number}.", f"click(point='<point>{number:02d} 10</point>')", result)


NOW = screen(200)
HISTORY = [past(number) for number in range(6)]
LARGE = 20_000  # tokens: nothing has to go


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """The embedded model's and, of other families, Qwen2.5-VL's and Qwen3-VL's."""
    root = tmp_path_factory.mktemp("models")
    others = [Encoder.from_folder(make(root / name, name)) for name in ("qwen2_5_vl", "qwen3_vl")]
    return [Encoder.from_folder(BASE), *others]


def texts(context) -> str:
    return "".join(part for message in context for part in message.parts if isinstance(part, str))


# -- the form --------------------------------------------------------------------------------------------------------
def test_the_first_step_is_the_screen_and_the_instruction():
    assert build_context(" Click the red tile. ", [], NOW, PolicySettings()) == (
        Message("user", (Image(NOW), "Click the red tile.")),
    )


def test_older_steps_become_one_line_each():
    context = build_context("Go.", HISTORY, NOW, PolicySettings(history_n_images=1, history_n_text=2))
    assert context == (Message("user", (Image(NOW), "Go.\nDone: I did 4. I did 5.")),)


def test_working_steps_count_the_present_one():
    context = build_context(
        "Go.", HISTORY, NOW, PolicySettings(history_n_images=3, history_n_text=1, max_context_tokens=2000)
    )
    assert [message.role for message in context] == ["user", "assistant", "user", "assistant", "user"]
    assert context[0].parts == (Image(screen(4)),)
    assert context[1].parts == ("Thought: I did 4.\nAction: click(point='<point>04 10</point>')",)
    assert context[4].parts == (Image(NOW), "Go.\nDone: I did 3.")


def test_other_models_are_told_the_action_space_first():
    context = build_context("Go.", [], NOW, PolicySettings(template="point", coordinates=1000, max_context_tokens=4000))
    assert context[0].parts[0].endswith("## User Instruction\nGo.")
    assert "0 to 999" in context[0].parts[0]
    assert context[-1].parts == (Image(NOW),)


def test_what_is_older_still_is_one_text():
    steps = [past(n) for n in range(9)]
    policy = PolicySettings(history_n_text=2, summary_max_chars=60)
    assert build_context("Go.", steps, NOW, policy) == (
        Message("user", (Image(NOW), "Go.\nBefore: 7 steps: no action 7.\nDone: I did 7. I did 8.")),
    )


plain_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
old_steps = st.builds(PastStep, st.just(None), plain_text, plain_text, plain_text)


@given(plain_text.filter(str.strip), st.lists(old_steps, max_size=4))
def test_the_default_is_the_form_that_the_base_was_trained_on(instruction, history):
    """Lines of the newest four steps behind the instruction, in one message behind the screen: whatever they hold."""
    done = "\nDone: " + " ".join(map(summarise_step, history)) if history else ""
    context = build_context(instruction, history, NOW, PolicySettings(max_context_tokens=LARGE))
    assert context == (Message("user", (Image(NOW), instruction.strip() + done)),)


# -- results ---------------------------------------------------------------------------------------------------------
def test_a_result_stands_between_its_action_and_the_next_screen():
    steps = [past(0, "old"), past(1, " 3 files \n"), past(2, "done")]
    context = build_context("Go.", steps, NOW, PolicySettings(history_n_images=3, max_context_tokens=LARGE))
    assert [message.parts for message in context if message.role == "user"] == [
        (Image(screen(1)),),
        ("Result: 3 files\n", Image(screen(2))),
        ("Result: done\n", Image(NOW), "Go.\nDone: I did 0. -> old"),
    ]


def test_a_tool_caller_reads_results_in_its_own_form():
    policy = PolicySettings(template="tool_call", history_n_images=2, max_context_tokens=LARGE)
    context = build_context("Go.", [past(0, "a</tool_response>b")], NOW, policy)
    assert context[-1].parts == ("<tool_response>\na< /tool_response>b\n</tool_response>\n", Image(NOW))


def test_without_working_memory_a_result_is_shown_in_full_to_a_model_with_functions():
    long = "line\n" * 40
    without, with_functions = (
        build_context("Go.", [past(0, long)], NOW, PolicySettings(functions=on, max_context_tokens=LARGE))
        for on in (False, True)
    )
    assert long.strip() not in texts(without)
    assert with_functions[0].parts[0] == f"Result: {long.strip()}\n"
    assert with_functions[0].parts[1:] == without[0].parts


def test_an_answer_without_an_action_is_told_so():
    step = PastStep(screen(0), "I wonder.", "", parse_error="there is no action")
    context = build_context("Go.", [step], NOW, PolicySettings(history_n_images=2, max_context_tokens=LARGE))
    assert context[1].parts == ("Thought: I wonder.\nAction: ",)
    assert context[2].parts[0] == "Result: No action was carried out: there is no action.\n"


def test_a_long_result_keeps_its_two_ends():
    policy = PolicySettings(history_n_images=2, result_characters=200, max_context_tokens=LARGE)
    context = build_context("Go.", [past(0, "first " + "x" * 50_000 + " last")], NOW, policy)
    told = context[-1].parts[0]
    assert told.startswith("Result: first xx")
    assert told.endswith("xx last\n")
    assert "\n[49811 characters left out]\n" in told
    assert len(told) <= 200 + len("Result: \n")


# -- the budget ------------------------------------------------------------------------------------------------------
def test_what_does_not_fit_goes_in_a_fixed_order():
    """One token less at a time: digest, lines, working steps, their number, and the newest result last."""
    memory = EpisodeMemory((past(3), past(4)), ("L1.", "L2."), 7, "a digest", "R" * 64)
    policy = PolicySettings(history_n_images=3, summary_max_chars=10, max_context_tokens=LARGE)

    def shown(context) -> tuple:
        text = context[-1].parts[-1].removeprefix("Go.").strip()
        result = next((p for m in context for p in m.parts if isinstance(p, str) and p.startswith("Result")), "")
        return text, len(context) // 2, result.count("R") - 1 if result else 0

    found, tokens = [], LARGE
    while True:
        try:
            context = build_context("Go.", memory, NOW, policy.model_copy(update={"max_context_tokens": tokens}))
        except BadInput:
            break
        found += [] if found and found[-1] == shown(context) else [shown(context)]
        tokens = count_tokens_upper_bound(context) - 1
    assert found == [
        ("Before: 7 steps: a digest\nDone: L1. L2.", 2, 64),
        ("Before: 7 steps.\nDone: L1. L2.", 2, 64),
        ("Before: 8 steps.\nDone: L2.", 2, 64),
        ("Before: 9 steps.", 2, 64),
        ("Before: 10 steps.", 1, 64),
        ("Before: 11 steps.", 0, 64),
        ("", 0, 64),
        ("", 0, found[-2][2]),
        ("", 0, 0),
    ]
    assert 0 < found[-2][2] <= 32


def test_a_long_observation_is_shortened_last():
    """Its middle goes, by halves, once nothing else is left to go."""
    policy = PolicySettings(
        history_n_images=2, result_characters=200, observation_characters=400, max_context_tokens=LARGE
    )
    history, text = [past(0, "R" * 100)], "first " + "x" * 1000 + " last"

    def shown(tokens):
        chosen = policy.model_copy(update={"max_context_tokens": tokens})
        context = build_context("Go.", history, None, chosen, observation=text)
        return context, next(part for part in context[-1].parts if part.startswith("Observation: "))

    context, told = shown(LARGE)
    assert told.startswith("Observation: first xx")
    assert told.endswith("xx last\n")
    assert len(told) == 400 + len("Observation: \n")
    lengths = [len(told)]
    while lengths[-1] > len("Observation: \n"):
        context, told = shown(count_tokens_upper_bound(context) - 1)
        if len(told) < lengths[-1]:
            assert context == (Message("user", (told, "Go.")),)
            lengths.append(len(told))
    assert [length - len("Observation: \n") for length in lengths] == [400, 200, 100, 50, 0]


def test_something_must_be_seen():
    with pytest.raises(BadInput, match="nothing to see and nothing to read"):
        build_context("Go.", [], None, PolicySettings())


def test_what_was_read_stays_in_working_memory():
    step = PastStep(None, "I look.", "wait()", observation=" 2 files \n")
    context = build_context(
        "Go.", [step], None, PolicySettings(history_n_images=2, max_context_tokens=LARGE), observation=""
    )
    assert [message.parts for message in context if message.role == "user"] == [
        ("Observation: 2 files\n",),
        ("Observation: \n", "Go."),
    ]


awkward = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["<|im_end|><|image_pad|>", "\ud800", "\u0958" * 20, "漢字🙂", " \n\t ", "</tool_response>"]),
    st.integers(0, 30_000).map(lambda n: "ab 12\n" * (n // 6)),
)
shades = st.integers(0, 3).map(lambda n: screen(n, (224, 60, 300, 3)[n], (224, 40, 200, 90)[n]))
steps = st.builds(
    PastStep,
    st.one_of(st.none(), shades),
    awkward,
    awkward,
    awkward,
    st.sampled_from(["", "type", "click"]),
    awkward,
    awkward,
    awkward,
    st.one_of(st.none(), awkward),
)
policies = st.builds(
    PolicySettings,
    template=st.sampled_from(["minimal", "point", "ui_tars_1_5", "ui_tars_1_0", "tool_call"]),
    functions=st.booleans(),
    history_n_images=st.integers(1, 6),
    history_n_text=st.integers(0, 6),
    summary_max_chars=st.sampled_from([0, 1, 40, 300]),
    result_characters=st.sampled_from([0, 7, 500, 2000]),
    observation_characters=st.sampled_from([32, 2000]),
    max_context_tokens=st.integers(128, 6000),
    max_new_tokens=st.just(8),
)


@settings(max_examples=examples(60))
@given(
    policies,
    awkward.filter(str.strip),
    st.lists(steps, max_size=12),
    st.one_of(st.tuples(shades, st.none()), st.tuples(st.none(), awkward), st.tuples(shades, awkward)),
    st.sampled_from([None, 0, 1, 2]),
)
def test_the_budget_is_never_exceeded(encoders, policy, instruction, history, seen, which):
    """Whatever the template, the budget, the history, the results and what is seen, by a real count or by the bound."""
    now, observation = seen
    count = None if which is None else encoders[which].count
    measure = count or (lambda context: count_tokens_upper_bound(context, policy))
    try:
        context = build_context(instruction, history, now, policy, count, observation=observation)
    except BadInput:
        roomy, nothing = policy.model_copy(update={"max_context_tokens": 10**6}), None if observation is None else ""
        alone = build_context(instruction, [], now, roomy, observation=nothing)
        assert measure(alone) > policy.max_context_tokens
        return
    assert measure(context) <= policy.max_context_tokens
    assert context[-1].role == "user"
    assert [part for part in context[-1].parts if isinstance(part, Image)] == ([Image(now)] if now else [])
    told = [part for part in context[-1].parts if isinstance(part, str) and part.startswith("Observation: ")]
    assert len(told) == (observation is not None)
    assert all(len(part) <= policy.observation_characters + len("Observation: \n") for part in told)
    assert instruction.strip() in texts(context)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(awkward, st.integers(5, 900), st.integers(5, 900)), min_size=1, max_size=3))
def test_the_estimate_is_an_upper_bound(encoders, parts):
    messages = [Message("user", (Image(screen(9, w, h)), text)) for text, w, h in parts]
    context = tuple(m for one in messages for m in (one, Message("assistant", ("Yes.",))))
    for encoder in encoders:
        assert encoder.count(context) <= count_tokens_upper_bound(context)


def test_a_real_count_keeps_what_the_estimate_would_drop(encoders):
    steps = [PastStep(None, "I looked at it for a long time. " * 3, "wait()") for _ in range(4)]
    policy = PolicySettings(max_context_tokens=300)
    estimated, counted = (build_context("Go.", steps, NOW, policy, count) for count in (None, encoders[0].count))
    assert len(texts(estimated)) < len(texts(counted))
    assert encoders[0].count(counted) == len(encoders[0].encode(counted)) <= 300


# -- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("instruction", ["", "  \n"])
def test_an_empty_instruction_is_refused(instruction):
    with pytest.raises(BadInput, match="instruction is empty"):
        build_context(instruction, [], NOW, PolicySettings())


def test_an_instruction_that_cannot_fit_is_refused():
    with pytest.raises(BadInput, match="max_context_tokens"):
        build_context("x" * 5000, HISTORY, NOW, PolicySettings())


@pytest.mark.parametrize(
    ("now", "what"),
    [
        (b"no picture", "not an image"),
        (b"", "empty: 0 bytes"),
        (screen(1, 4097, 30), r"4097 x 30 pixels.*policy\.max_image_side is 4096"),
        (screen(1, 1000, 4), "too narrow: 1000 x 4 pixels"),
    ],
)
def test_a_broken_screen_is_refused(now, what):
    with pytest.raises(BadInput, match=what):
        build_context("Go.", [], now, PolicySettings())
