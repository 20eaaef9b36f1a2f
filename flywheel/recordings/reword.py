"""Reword the instruction and the thoughts of recordings, for diversity of language (UI-TARS-2 report, section 2.4.1).

A language model does it where `language_model.endpoint` names one, else rules, which put the words into other frames
and say what a thought follows on. Actions and screens stay the person's. A rewording is a trajectory of its own (source
`augmentation`, `parent_id` the recording's): it is of the same task, so it is on the same side of the split, and it is
no demonstration that a person gave.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from importlib import resources
from typing import Any, Protocol

import yaml

from flywheel.agent.grammar import format_response
from flywheel.config import Settings
from flywheel.policy.client.language_model import LanguageModelError, OpenAIChatModel
from flywheel.recordings.refine import LEADS
from flywheel.store.dedup.near_duplicates import instruction_arguments
from flywheel.store.schema import Step, Trajectory, make_trajectory_id

SOURCE = "augmentation"  # of the trajectories
_SAME = 0.97  # share of words in common from which on a rewording is nearly the same
_TEMPERATURE = 0.9
_DECLARED = yaml.safe_load(resources.files("flywheel.recordings").joinpath("reword.yaml").read_text("utf-8"))
_IMPERATIVES = frozenset(_DECLARED["imperatives"].split())
_END_WORDS = tuple(words.strip() for words in _DECLARED["end_words"].split(","))
_QUOTED = re.compile(r'"[^"]*"|“[^”]*”')
_SEVERAL = re.compile(r"[:;]|[.!?](?=\s)")  # a colon, or the end of a sentence before another one
_YOU = re.compile(r"\byour?\b", re.IGNORECASE)
_BROKEN_OFF = re.compile(r"^(?:I|I'm)\.\s+(?=I\b)")
_I_DO = re.compile(r"I(?:'ll|'d|'ve)? (?!am\b)")


@dataclass(frozen=True)
class Wording:
    """Hold the words of a recording: its instruction, and the thought of each step, "" where there is none."""

    instruction: str
    thoughts: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """Return all words, in lower case."""
        return " ".join((self.instruction, *self.thoughts)).casefold().split()


class Reworder(Protocol):
    """Reword recordings. name: stored with each rewording, as who made it."""

    name: str

    def reword(self, wording: Wording, count: int) -> list[Wording]:
        """Return `count` rewordings of `wording`. Raises LanguageModelError where a language model fails."""


def open_reworder(settings: Settings) -> Reworder:
    """Open what rewords recordings: a language model where `language_model.endpoint` names one, else rules.

    Raises BadInput for an endpoint that is not an address.
    """
    if settings.language_model.endpoint:
        return ModelReworder(OpenAIChatModel(settings.language_model))
    return RuleReworder()


class ModelReworder:
    """Reword by a language model, a text at a time. Its failure is an error: rules never replace it silently."""

    def __init__(self, model: OpenAIChatModel) -> None:
        self.name, self._model = model.name, model

    def reword(self, wording: Wording, count: int) -> list[Wording]:
        """Return `count` rewordings of `wording`. Raises LanguageModelError where the model fails."""
        texts = [wording.instruction, *wording.thoughts]
        asked = [(n, place) for n in range(count) for place, text in enumerate(texts) if text]
        prompts = [
            (
                _DECLARED["instruction" if place == 0 else "thought"],
                f"Task: {wording.instruction}\nText: {texts[place]}\nVersion {n + 1}",
            )
            for n, place in asked
        ]
        made = [list(texts) for _ in range(count)]
        for (n, place), answer in zip(
            asked, self._model.complete_all(prompts, [_TEMPERATURE] * len(asked)), strict=True
        ):
            if isinstance(answer, LanguageModelError):
                raise answer
            made[n][place] = " ".join(answer.split()) or texts[place]
        return [Wording(first, tuple(rest)) for first, *rest in made]


class RuleReworder:
    """Reword by rules: frames around the words as they are."""

    name = "rules"

    def reword(self, wording: Wording, count: int) -> list[Wording]:
        """Return `count` rewordings of `wording`; from the number of frames on they repeat."""
        return [
            Wording(_framed_instruction(wording.instruction, n), _framed_thoughts(wording, n)) for n in range(count)
        ]


def _framed_instruction(text: str, number: int) -> str:
    kind = "questions" if text.endswith("?") else "requests" if _asks(text) else "tasks"
    frames = _DECLARED[kind]
    return frames[number % len(frames)].format(text=text, begun=_begun(text))


def _asks(text: str) -> bool:
    """Tell whether an instruction is one sentence that begins with a verb, so that it can go on within another."""
    return text.split(" ", 1)[0].casefold() in _IMPERATIVES and not _SEVERAL.search(_QUOTED.sub("", text))


def _framed_thoughts(wording: Wording, number: int) -> tuple[str, ...]:
    """Return the thoughts, each with what says where it stands; the first begins with what the task is."""
    spoken = [place for place, thought in enumerate(wording.thoughts) if thought]
    made, task = list(wording.thoughts), wording.instruction
    for order, place in enumerate(spoken):
        part = "first" if order == 0 else "last" if order == len(spoken) - 1 else "next"
        said, does = _without_lead(wording.thoughts[place])
        if not does:
            ends = part == "last" and any(word in said.casefold() for word in _END_WORDS)
            part = "end" if ends else f"{part}_statement"
        elif part == "first" and _asks(task) and not _YOU.search(task):
            part = "first_with_task"
        frames = _DECLARED[part]
        made[place] = frames[(number + order) % len(frames)].format(text=said, begun=_begun(said), task=_begun(task))
    return tuple(made)


def _without_lead(thought: str) -> tuple[str, bool]:
    """Return a thought without the word that says where it stands ("Now I click it."), as the frame says that, and
    whether it says what "I" do. A word that is no such lead, as in "Here is the lamp.", stays. An "I." with which the
    speaker began, and broke off, goes."""
    thought = _BROKEN_OFF.sub("", thought)
    lead, _, rest = thought.partition(" ")
    said = rest if lead.rstrip(",").casefold() in LEADS and _I_DO.match(rest) else thought
    return said, bool(_I_DO.match(said)) and not any(word in said.casefold() for word in _END_WORDS)


def _begun(text: str) -> str:
    """Return a sentence as it goes on within another: without its capital letter and its full stop."""
    first = text.split(" ", 1)[0]
    keep = first in ("I", "I'm", "I'll", "I've") or first[1:] != first[1:].lower() or not first[:1].isalpha()
    return (text if keep else text[:1].lower() + text[1:]).rstrip(".")


def augment_recording(
    trajectory: Trajectory, steps: Sequence[Step], task: Mapping[str, Any], reworder: Reworder, count: int
) -> tuple[list[tuple[Trajectory, list[Step]]], list[str]]:
    """Make `count` rewordings of a recording; return those that are kept, and why the others are not, in words.

    trajectory, steps: of the recording. task: its row of `tasks`. A rewording is dropped where it changes what is asked
    (numbers, quoted texts, and the task's parameters that the instruction names must stay), or where 97% of its words
    are, in order, those of the recording or of another one. Raises LanguageModelError where a language model fails.
    """
    own = Wording(trajectory.instruction or "", tuple(step.thought or "" for step in steps))
    told: list[Wording] = [own]
    kept, dropped = [], []
    for number, made in enumerate(reworder.reword(own, count), 1):
        if why := _changed_request(own.instruction, made.instruction, task):
            dropped.append(f"rewording {number} is dropped: {why}")
        elif any(SequenceMatcher(None, made.words, one.words, autojunk=False).ratio() >= _SAME for one in told):
            dropped.append(f"rewording {number} is dropped: it is nearly the recording, or another rewording of it")
        else:
            told.append(made)
            kept.append(_augmented(trajectory, steps, made, number))
    return kept, dropped


def _changed_request(instruction: str, made: str, task: Mapping[str, Any]) -> str:
    """Say how a rewording asks for something else; "" where it does not."""
    values = (text.casefold().rstrip(".") for text in _texts(json.loads(task["params"] or "{}")))
    named = [value for value in values if value in instruction.casefold()]
    if missing := [value for value in named if value not in made.casefold()]:
        return f"it no longer says {missing[0]!r}"
    same = instruction_arguments(instruction) == instruction_arguments(made)
    return "" if same else "its numbers or quoted texts are others"


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping | list):
        return [text for part in (value.values() if isinstance(value, Mapping) else value) for text in _texts(part)]
    return [value] if isinstance(value, str) and value.strip() else []


def _augmented(
    trajectory: Trajectory, steps: Sequence[Step], made: Wording, number: int
) -> tuple[Trajectory, list[Step]]:
    new = replace(
        trajectory,
        trajectory_id=make_trajectory_id(0, trajectory.task_id, number, trajectory.trajectory_id),
        instruction=made.instruction,
        source=SOURCE,
        sample=number,
        parent_id=trajectory.trajectory_id,
    )
    reworded = [
        replace(
            step,
            trajectory_id=new.trajectory_id,
            thought=thought,
            raw_text=format_response(thought, step.action) if step.action else step.raw_text,
        )
        for step, thought in zip(steps, made.thoughts, strict=True)
    ]
    return new, reworded
