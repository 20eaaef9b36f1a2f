"""How well a model sees, reads and points: greedy answers about fresh general screens, judged exactly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flywheel import scenes
from flywheel import settings as config
from flywheel.agent.actions import Point
from flywheel.agent.parser import parse
from flywheel.agent.prompt import build_context
from flywheel.intervals import wilson
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import Sampling
from flywheel.policy.sampling import generate
from flywheel.sandbox import chromium
from flywheel.synthesis.general import encode_png
from flywheel.synthesis.render import Renderer

TOGETHER = 32  # answers in one batch
DESCRIBING = ("describe", "board")  # too long to answer in a step


@dataclass(frozen=True)
class JudgedAnswer:
    """One question, what the model said, and whether it is right. pixels: uint8 [side, side, 3]."""

    scene: scenes.Scene
    pixels: np.ndarray
    question: scenes.Question
    text: str
    right: bool


def success(question: scenes.Question, text: str, coordinates: int) -> bool:
    """An action on points must be of the same kind and hit their boxes; any other answer must be the same text,
    thoughts apart."""
    if not question.boxes or question.skill == "describe":
        return text.split("Action: ")[-1] == question.response.split("Action: ")[-1]
    done, meant = parse(text, coordinates).action, parse(question.response, coordinates).action
    if type(done) is not type(meant):
        return False
    points = [value for value in vars(done).values() if isinstance(value, Point)]
    return all(box.holds(point) for box, point in zip(question.boxes, points, strict=True))


def ask(
    model: torch.nn.Module,
    encoder: Encoder,
    policy: config.Policy,
    asked: Sequence[tuple[scenes.Scene, Sequence[scenes.Question]]],
) -> list[JudgedAnswer]:
    """Greedy answers to some questions about each scene, which is drawn by Chromium."""
    with Renderer(str(chromium.find(config.Sandbox()))) as renderer:
        pixels = renderer.draw([scene for scene, _ in asked])
    screens = [encode_png(picture) for picture in pixels]
    flat = [(number, question) for number, (_, questions) in enumerate(asked) for question in questions]
    greedy = Sampling(temperature=0, max_new_tokens=policy.max_new_tokens)
    training = model.training
    model.eval()
    answers = []
    for begin in range(0, len(flat), TOGETHER):
        part = flat[begin : begin + TOGETHER]
        prompts = [encoder.encode(build_context(q.instruction, [], screens[n], policy)) for n, q in part]
        samples = generate(model, encoder.end_id, prompts, [greedy] * len(part))
        for (number, question), sample in zip(part, samples, strict=True):
            text = encoder.decode(sample.token_ids)
            right = success(question, text, policy.coordinates)
            answers.append(JudgedAnswer(asked[number][0], pixels[number], question, text, right))
    model.train(training)
    return answers


def evaluate(
    model: torch.nn.Module, encoder: Encoder, policy: config.Policy, *, seed: int, scenes_a_kind: int = 24
) -> dict[str, dict[str, float]]:
    """Success on fresh held-out scenes of all levels, for each skill: value, n, 95% Wilson interval."""
    rng = random.Random(f"held out {seed}")
    asked = []
    for kind in scenes.KINDS:
        for number in range(scenes_a_kind):
            scene = scenes.draw(kind, 1 + number % scenes.LEVELS, rng, policy.coordinates)
            others = [q for q in scene.questions if q.skill not in DESCRIBING]
            asked.append((scene, rng.sample(others, min(3, len(others)))))
    hits: dict[str, list[bool]] = {}
    for answer in ask(model, encoder, policy, asked):
        hits.setdefault(answer.question.skill, []).append(answer.right)
        hits.setdefault(f"level {answer.scene.level}", []).append(answer.right)
    return {skill: rate(found) for skill, found in sorted(hits.items())}


def rate(hits: Sequence[bool]) -> dict[str, float]:
    """The share of True with its 95% Wilson interval."""
    low, high = wilson(sum(hits), len(hits))
    return {"value": round(sum(hits) / len(hits), 3), "n": len(hits), "low": round(low, 3), "high": round(high, 3)}
