"""Measure how well a model sees, reads and points, by greedy answers about fresh screens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flywheel import config
from flywheel.agent.actions import Point
from flywheel.agent.parsing.parser import parse_response
from flywheel.agent.prompt import build_context
from flywheel.envs.browser.driver import chromium
from flywheel.envs.screens import layouts
from flywheel.envs.tasks.grounding import SceneRenderer, encode_png
from flywheel.policy.encoding import Encoder
from flywheel.policy.inference.engine import generate_responses
from flywheel.policy.protocol import SamplingParams
from flywheel.utils.confidence_intervals import wilson_interval

ANSWER_BATCH = 32  # answers in one batch
DESCRIPTION_SKILLS = ("describe", "board")  # too long to answer in a step


@dataclass(frozen=True)
class JudgedAnswer:
    """One question, what the model said, and whether it is right. pixels: uint8 [side, side, 3]."""

    scene: layouts.Scene
    pixels: np.ndarray
    question: layouts.SceneQuestion
    text: str
    right: bool


def is_correct_answer(question: layouts.SceneQuestion, text: str, coordinates: int) -> bool:
    """Tell whether an answer is correct.

    An action on points must be of the same kind and hit their boxes; any other answer must be the same text, thoughts
    apart.
    """
    if not question.boxes or question.skill == "describe":
        return text.split("Action: ")[-1] == question.response.split("Action: ")[-1]
    done, meant = parse_response(text, coordinates).action, parse_response(question.response, coordinates).action
    if type(done) is not type(meant):
        return False
    points = [value for value in vars(done).values() if isinstance(value, Point)]
    return all(box.holds(point) for box, point in zip(question.boxes, points, strict=True))


def answer_questions(
    model: torch.nn.Module,
    encoder: Encoder,
    policy: config.PolicySettings,
    asked: Sequence[tuple[layouts.Scene, Sequence[layouts.SceneQuestion]]],
) -> list[JudgedAnswer]:
    """Greedy answers to some questions about each scene, which is drawn by Chromium."""
    with SceneRenderer(str(chromium.find_chromium(config.SandboxSettings()))) as renderer:
        pixels = renderer.draw([scene for scene, _ in asked])
    screens = [encode_png(picture) for picture in pixels]
    flat = [(number, question) for number, (_, questions) in enumerate(asked) for question in questions]
    greedy = SamplingParams(temperature=0, max_new_tokens=policy.max_new_tokens)
    training = model.training
    model.eval()
    answers = []
    for begin in range(0, len(flat), ANSWER_BATCH):
        part = flat[begin : begin + ANSWER_BATCH]
        prompts = [encoder.encode(build_context(q.instruction, [], screens[n], policy)) for n, q in part]
        samples = generate_responses(model, encoder.end_id, prompts, [greedy] * len(part))
        for (number, question), sample in zip(part, samples, strict=True):
            text = encoder.decode(sample.token_ids)
            right = is_correct_answer(question, text, policy.coordinates)
            answers.append(JudgedAnswer(asked[number][0], pixels[number], question, text, right))
    model.train(training)
    return answers


def evaluate_grounding(
    model: torch.nn.Module, encoder: Encoder, policy: config.PolicySettings, *, seed: int, scenes_a_kind: int = 24
) -> dict[str, dict[str, float]]:
    """Measure success on fresh held-out scenes of all levels, for each skill: value, n, 95% Wilson interval."""
    rng = random.Random(f"held out {seed}")
    asked = []
    for kind in layouts.SCENE_KINDS:
        for number in range(scenes_a_kind):
            scene = layouts.draw_scene(kind, 1 + number % layouts.SCENE_LEVELS, rng, policy.coordinates)
            others = [q for q in scene.questions if q.skill not in DESCRIPTION_SKILLS]
            asked.append((scene, rng.sample(others, min(3, len(others)))))
    hits: dict[str, list[bool]] = {}
    for answer in answer_questions(model, encoder, policy, asked):
        hits.setdefault(answer.question.skill, []).append(answer.right)
        hits.setdefault(f"level {answer.scene.level}", []).append(answer.right)
    return {skill: success_rate(found) for skill, found in sorted(hits.items())}


def success_rate(hits: Sequence[bool]) -> dict[str, float]:
    """Compute the share of True with its 95% Wilson interval."""
    low, high = wilson_interval(sum(hits), len(hits))
    return {"value": round(sum(hits) / len(hits), 3), "n": len(hits), "low": round(low, 3), "high": round(high, 3)}
