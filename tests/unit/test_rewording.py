"""A recording in other words: by rules, by a language model, and what is dropped by name."""

from __future__ import annotations

import pytest

from flywheel.config import Settings
from flywheel.policy.client.language_model import LanguageModelError
from flywheel.recordings.refine import LEADS
from flywheel.recordings.reword import ModelReworder, RuleReworder, Wording, augment_recording, open_reworder
from flywheel.store.dedup.near_duplicates import instruction_arguments
from flywheel.store.schema import Step, Trajectory

ACTION = "click(point='<point>10 20</point>')"
ONE = Trajectory("t", "k", "sites", instruction="Put the blue mug into the cart.", source="recording", author="human")
TASK = {"params": '{"item": "blue mug", "n": 3, "others": [{"name": "red hat"}]}'}
WORDS = Wording('Type "Ann B." and 3 in order.', ("I see it.", "", "Then I type it.", "I'm done."))


def steps(*thoughts: str) -> list[Step]:
    return [
        Step("t", n, "human", thought, action=ACTION, raw_text=f"Thought: {thought}\nAction: {ACTION}")
        for n, thought in enumerate(thoughts)
    ]


class Fixed:
    """A reworder that gives these instructions."""

    name = "m"

    def __init__(self, *asked: str) -> None:
        self.asked = asked

    def reword(self, wording, count):
        return [Wording(text, wording.thoughts) for text in self.asked]


@pytest.mark.parametrize(
    ("instruction", "arguments"),
    [
        ("Rename Anna's file to Bob's.", ()),
        ("The boys' room, 6' wide", ("6",)),
        ("Don't press 'OK', it's wrong", ("ok",)),
        ("Press 'Don't save'", ("don't save",)),
        ("type \"it's\" and 'b c'", ("b c", "it's")),
        ("点击'确定'按钮", ("确定",)),
        ("'확인'을 누르세요", ("확인",)),
        ("Press ‘Don’t save’", ("don’t save",)),
        ("Drücke „Ja“, „Nein” und «Weiß»", ("ja", "nein", "weiss")),
        ("点击「确定」", ("确定",)),
    ],
)
def test_quotes_are_told_from_apostrophes(instruction, arguments):
    assert instruction_arguments(instruction) == arguments


def test_rules_frame_the_words_and_add_no_others():
    made = RuleReworder().reword(WORDS, 8)
    assert len({one.instruction for one in made}) == 8
    for one in made:
        assert instruction_arguments(one.instruction) == instruction_arguments(WORDS.instruction)
        assert [bool(thought) for thought in one.thoughts] == [True, False, True, True], "silent steps stay silent"
        assert all(words.split(" ", 1)[1].rstrip(".") in thought for words, thought in (
            ("X see it", one.thoughts[0]), ("X I type it", one.thoughts[2]), ("X done", one.thoughts[3])
        ))  # fmt: skip
        first = [word.strip(",.:").casefold() for word in one.thoughts[2].split()[:2]]
        assert len(LEADS.intersection(first)) < 2, "a thought that says where it stands does not say it twice"


@pytest.mark.parametrize(
    ("instruction", "thoughts", "made"),
    [
        (
            "Turn on wifi and set the color to red.",
            ("Now I click the switch.", "Here is the box.", "I. I type red."),
            [
                "I have to turn on wifi and set the color to red. First, I click the switch.",
                "I go on. Here is the box.",
                "Only this is left. I type red.",
            ],
        ),
        # Two sentences, or one with "you", do not go on within another.
        (
            "Clear the tiles: pick three of a kind.",
            ("I click it.", "I'm done."),
            ["First, I click it.", "That was the last step. I'm done."],
        ),
        ("Press tab until you are in the field.", ("I press tab.",), ["First, I press tab."]),
        (
            "Which is older?",
            ("It is there.", "The answer is Rome."),
            ["I look at what is there. It is there.", "That was the last step. The answer is Rome."],
        ),
    ],
)
def test_each_reworded_thought_is_a_sentence(instruction, thoughts, made):
    assert list(RuleReworder().reword(Wording(instruction, thoughts), 1)[0].thoughts) == made


@pytest.mark.parametrize(
    ("instruction", "made"),
    [
        ("Delete letters until the field says book.", "Could you delete letters until the field says book?"),
        ("Clear the tiles: pick three of a kind.", "Please do the following. Clear the tiles: pick three of a kind."),
        ("Open it. Then close it.", "Please do the following. Open it. Then close it."),
        ("Which is older?", "Please answer this question. Which is older?"),
        ('Search for "a. b".', 'Could you search for "a. b"?'),
    ],
)
def test_each_reworded_instruction_is_a_sentence(instruction, made):
    assert RuleReworder().reword(Wording(instruction, ()), 3)[2].instruction == made


def test_a_rewording_is_of_the_same_task_with_the_same_actions():
    kept, dropped = augment_recording(ONE, steps("I click it.", "I am done."), TASK, RuleReworder(), 2)
    assert (len(kept), dropped) == (2, [])
    for number, (trajectory, made) in enumerate(kept, 1):
        assert (trajectory.parent_id, trajectory.source, trajectory.sample) == ("t", "augmentation", number)
        assert (trajectory.task_id, trajectory.author, trajectory.start_step) == ("k", "human", None)
        assert {step.trajectory_id for step in made} == {trajectory.trajectory_id} != {"t"}
        assert [step.raw_text for step in made] == [f"Thought: {step.thought}\nAction: {ACTION}" for step in made]
    assert (
        augment_recording(ONE, steps("I click it."), TASK, RuleReworder(), 1)[0][0][0]
        == augment_recording(ONE, steps("I click it."), TASK, RuleReworder(), 1)[0][0][0]
    ), "the same ids when it is done again"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("Put the red mug into the cart.", "it no longer says 'blue mug'"),
        ("Put the blue mug into the cart, 2 of them.", "its numbers or quoted texts are others"),
        (ONE.instruction, "it is nearly the recording, or another rewording of it"),
        ("put the BLUE mug  into the cart.", "it is nearly the recording, or another rewording of it"),
    ],
)
def test_what_says_something_else_or_nearly_the_same_is_dropped_by_name(said, why):
    kept, dropped = augment_recording(
        ONE, steps("I click it."), TASK, Fixed(said, "Into the cart with the blue mug!"), 2
    )
    assert dropped == [f"rewording 1 is dropped: {why}"]
    assert [trajectory.instruction for trajectory, _ in kept] == ["Into the cart with the blue mug!"]


def test_of_two_that_are_the_same_the_first_is_kept():
    made = "Into the cart with the blue mug!"
    kept, dropped = augment_recording(ONE, steps("I click it."), TASK, Fixed(made, made), 2)
    assert (len(kept), len(dropped)) == (1, 1)


class Model:
    """A language model that says a text backwards, or fails at one."""

    name = "some-model"

    def __init__(self, fails: int = -1) -> None:
        self.fails, self.asked = fails, []

    def complete_all(self, prompts, temperatures):
        self.asked += [user for _, user in prompts]
        assert len(temperatures) == len(prompts)
        return [
            LanguageModelError("the server failed") if n == self.fails else f" {user.splitlines()[1][6:][::-1]} "
            for n, (_, user) in enumerate(prompts)
        ]


def test_a_language_model_is_asked_for_each_text_of_each_version():
    model = Model()
    made = ModelReworder(model).reword(Wording("ab", ("cd", "")), 2)
    assert made == [Wording("ba", ("dc", ""))] * 2
    assert [text.splitlines()[2] for text in model.asked] == ["Version 1"] * 2 + ["Version 2"] * 2
    assert all(text.startswith("Task: ab\n") for text in model.asked)


def test_a_language_model_that_fails_is_not_replaced_by_rules():
    with pytest.raises(LanguageModelError, match="the server failed"):
        ModelReworder(Model(fails=1)).reword(Wording("ab", ("cd",)), 1)


def test_the_settings_say_who_rewords():
    named = {"language_model": {"endpoint": "http://127.0.0.1:9/v1", "model": "m7"}}
    assert [open_reworder(Settings.model_validate(one)).name for one in ({}, named)] == ["rules", "m7"]
