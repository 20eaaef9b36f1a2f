"""Measure a base on pages that pretraining never draws; let one replace another only if no figure is lower.

Figures: `grounding`, on a page with two to eight elements, click the one that is named, coloured or labelled;
`reading`, say exactly the word or number on a card or in a field, and `numbers`, the numbers of these alone; `copying`,
type what the instruction says, which is no word that the base knows; `parses`, of all outputs to questions that ask for
an action, those that hold one. Answers are greedy.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from string import ascii_lowercase

from flywheel import config
from flywheel.agent.actions import ParseError
from flywheel.agent.parsing.parser import parse_response
from flywheel.envs.screens import layouts
from flywheel.envs.screens.questions import ask_typing
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model
from flywheel.training.pretrain.pretrainer import DESCRIPTION_SKILLS, JudgedAnswer, answer_questions
from flywheel.utils.errors import ModelError
from flywheel.utils.files import atomic_folder, disk_full_errors

PAGES, SEED = 480, 2026  # of each group of questions, in the figures that docs/measurements/policy.md tells

CLICKS = {  # kind of page -> the skills that are clicks on a named, coloured or labelled element
    "shapes": ("shape",),
    "blocks": ("block",),
    "buttons": ("button",),
    "rows": ("toggle",),
    "texts": ("text",),
    "mixed": ("mixed",),
}
ELEMENTS = (2, 8)  # on a grounding page; a few kinds hold no more than six
TEXTS = (1, 6)  # on a reading page
AskedPage = tuple[layouts.Scene, list[layouts.SceneQuestion]]


def draw_base_questions(pages: int = PAGES, seed: int = SEED) -> dict[str, list[AskedPage]]:
    """Draw `pages` questions of each group (grounding, reading, action, copying), each with its page, by group.

    seed: of the pages.
    """
    rng = random.Random(f"bench base {seed}")
    groups = {"grounding": _grounding, "reading": _reading, "action": _action, "copying": _typing}
    return {name: [draw(number, rng) for number in range(pages)] for name, draw in groups.items()}


def answer_base_questions(folder: Path, asked: Mapping[str, Sequence[AskedPage]]) -> dict[str, list[JudgedAnswer]]:
    """Let the checkpoint in `folder` answer questions; return its judged answers, by group.

    asked: as `draw_base_questions` returns them. Raises ModelError for a folder that cannot be loaded, BadInput,
    EnvError and PolicyError as `answer_questions`.
    """
    model, encoder = load_model(folder), Encoder.from_folder(folder)
    answers = iter(answer_questions(model, encoder, config.PolicySettings(), list(chain.from_iterable(asked.values()))))
    return {name: list(islice(answers, len(some))) for name, some in asked.items()}


def rate_base(answers: Mapping[str, Sequence[JudgedAnswer]]) -> dict[str, float]:
    """Return the figures of a base by name, each a fraction of right answers.

    answers: of all groups, as `answer_base_questions` returns them, with a number among the readings.
    """
    policy = config.PolicySettings()
    right = {name: [answer.right for answer in some] for name, some in answers.items()}
    numbers = [answer.right for answer in answers["reading"] if answer.question.response.isdigit()]
    parses = [holds_action(answer, policy) for answer in (*answers["grounding"], *answers["action"])]
    counted = {name: right[name] for name in ("grounding", "reading", "copying")}
    counted |= {"numbers": numbers, "parses": parses}
    return {name: sum(some) / len(some) for name, some in counted.items()}


def list_worse_figures(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Return, in words, each figure of `before` that is lower in `after`, or missing there."""
    return [
        f"{name} {after[name]:.3f}, before {value:.3f}" if name in after else f"{name} was not measured"
        for name, value in before.items()
        if not after.get(name, -1.0) >= value
    ]


def replace_base(candidate: Path, place: Path, *, pages: int = PAGES, seed: int = SEED) -> dict[str, float]:
    """Put a checkpoint in the place of another one, if it is no worse in any figure; return the new one's figures.

    candidate: folder of the new checkpoint. place: folder of the old one, whose files are replaced, all or none. Both
    answer the same questions: `pages` of each group, drawn by `seed` (`draw_base_questions`). The figures, by name, are
    fractions of right answers (`rate_base`). Raises ModelError where a figure is lower, with those that are, and for a
    folder that cannot be loaded; DiskFull; BadInput, EnvError and PolicyError as `answer_questions`. The old checkpoint
    is then unchanged.
    """
    asked = draw_base_questions(pages, seed)
    before, after = (rate_base(answer_base_questions(folder, asked)) for folder in (place, candidate))
    if worse := list_worse_figures(before, after):
        what = f"it is worse than {place}: {'; '.join(worse)}"
        raise ModelError(
            what, where=candidate, fix="train on: a base is replaced by one that is no worse in any figure"
        )
    with disk_full_errors(place), atomic_folder(place) as staged:
        shutil.copytree(candidate, staged, dirs_exist_ok=True)
    return after


def holds_action(answer: JudgedAnswer, policy: config.PolicySettings) -> bool:
    """Tell whether an answer holds an action. policy: block `policy`, the form of answers."""
    return not isinstance(parse_response(answer.text, policy.coordinates).action, ParseError)


def _grounding(number: int, rng: random.Random) -> AskedPage:
    kind = list(CLICKS)[number % len(CLICKS)]
    while True:
        scene = layouts.draw_scene(kind, layouts.SCENE_LEVELS, rng, 100, count=rng.randint(*ELEMENTS))
        clicks = [question for question in scene.questions if question.skill in CLICKS[kind]]
        if clicks and scene.count > 1:
            return scene, [rng.choice(clicks)]


def _reading(number: int, rng: random.Random) -> AskedPage:
    while True:
        if number % 4 == 0:
            scene = layouts.draw_scene("form", 1, rng, 100)
        else:
            scene = layouts.draw_scene("texts", layouts.SCENE_LEVELS, rng, 100, count=rng.randint(*TEXTS))
        reads = [question for question in scene.questions if question.skill == "read"]
        if reads:
            return scene, [rng.choice(reads)]


def _action(number: int, rng: random.Random) -> AskedPage:
    kind = list(layouts.SCENE_KINDS)[number % len(layouts.SCENE_KINDS)]
    while True:
        scene = layouts.draw_scene(kind, rng.randint(1, layouts.SCENE_LEVELS), rng, 100)
        acts = [q for q in scene.questions if q.skill not in (*DESCRIPTION_SKILLS, "ask", "read")]
        if acts:
            return scene, [rng.choice(acts)]


def _typing(number: int, rng: random.Random) -> AskedPage:
    """Letters, syllables or a number, and of each a third with an ending, as a file's name."""
    made = (
        lambda: "".join(rng.choices(ascii_lowercase, k=rng.randint(3, 7))),
        lambda: "".join(rng.choice("bdfklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(2, 3))),
        lambda: str(rng.randrange(1000, 100_000)),
    )
    text = made[number % 3]() + (rng.choice((".txt", ".csv", ".py")) if number % 9 < 3 else "")
    scene = layouts.draw_scene(
        list(layouts.SCENE_KINDS)[number % len(layouts.SCENE_KINDS)], 1 + number % layouts.SCENE_LEVELS, rng, 100
    )
    return scene, [ask_typing(text, rng, 100)]
