"""How well a model sees and points: greedy success on fresh general screens, for each skill."""

from __future__ import annotations

import random

import torch

from flywheel import settings as config
from flywheel.agent.actions import Click, Drag, ParseError
from flywheel.agent.parser import parse
from flywheel.agent.prompt import build_context
from flywheel.evaluation.intervals import wilson
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import Sampling
from flywheel.policy.sampling import generate
from flywheel.sandbox import chromium
from flywheel.synthesis import scenes
from flywheel.synthesis.general import encode_png
from flywheel.synthesis.render import Renderer


def success(question: scenes.Question, text: str, coordinates: int) -> bool:
    """A click or drag must hit its boxes; any other answer must be the same text, thoughts apart."""
    if not question.boxes:
        return text.split("Action: ")[-1] == question.response.split("Action: ")[-1]
    match parse(text, coordinates).action:
        case Click(point):
            return len(question.boxes) == 1 and question.boxes[0].holds(point)
        case Drag(start, end):
            return len(question.boxes) == 2 and question.boxes[0].holds(start) and question.boxes[1].holds(end)
        case ParseError() | _:
            return False


def evaluate(
    model: torch.nn.Module, encoder: Encoder, policy: config.Policy, *, seed: int, scenes_a_kind: int = 24
) -> dict[str, dict[str, float]]:
    """Greedy success on fresh held-out scenes of levels 1 to 3, for each skill: value, n, 95% Wilson interval."""
    rng = random.Random(f"held out {seed}")
    drawn = [
        scenes.draw(kind, 1 + number % 3, rng, policy.coordinates)
        for kind in scenes.KINDS
        for number in range(scenes_a_kind)
    ]
    with Renderer(str(chromium.find(config.Sandbox()))) as renderer:
        pixels = renderer.draw(drawn)
    asked: list[tuple[int, scenes.Question]] = []
    for number, scene in enumerate(drawn):
        others = [q for q in scene.questions if q.skill not in ("describe", "read")]
        asked += [(number, question) for question in rng.sample(others, min(3, len(others)))]
    screens = [encode_png(picture) for picture in pixels]
    hits: dict[str, list[bool]] = {}
    training = model.training
    model.eval()
    for begin in range(0, len(asked), 32):
        part = asked[begin : begin + 32]
        prompts = [encoder.encode(build_context(q.instruction, [], screens[n], policy)) for n, q in part]
        greedy = [Sampling(temperature=0, max_new_tokens=policy.max_new_tokens)] * len(part)
        for (number, question), sample in zip(part, generate(model, encoder.end_id, prompts, greedy), strict=True):
            hit = success(question, encoder.decode(sample.token_ids), policy.coordinates)
            hits.setdefault(question.skill, []).append(hit)
            hits.setdefault(f"level {drawn[number].level}", []).append(hit)
    model.train(training)
    return {skill: _rate(found) for skill, found in sorted(hits.items())}


def _rate(hits: list[bool]) -> dict[str, float]:
    low, high = wilson(sum(hits), len(hits))
    return {"value": round(sum(hits) / len(hits), 3), "n": len(hits), "low": round(low, 3), "high": round(high, 3)}
