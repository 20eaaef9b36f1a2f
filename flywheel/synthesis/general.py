"""General data for the CT and SFT mixes, and for pretraining: screens with questions and their exact answers."""

from __future__ import annotations

import hashlib
import io
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image as Picture

from flywheel import scenes
from flywheel.sandbox import chromium
from flywheel.settings import Settings
from flywheel.synthesis.render import Renderer


@dataclass(frozen=True)
class GeneralSample:
    """One row of the table `general`, with its screen. kind: the skill that the question tests."""

    sample_id: str
    kind: str
    png: bytes
    instruction: str
    response: str


def make_general(n: int, seed: int, settings: Settings) -> list[GeneralSample]:
    """`n` samples, of every kind of scene and every level in turn, three questions a screen at most.

    The same arguments give the same samples. Raises EnvError where Chromium fails, BadInput where there is none.
    """
    rng = random.Random(f"general {seed}")
    kinds, per_screen = list(scenes.KINDS), 3
    drawn: list[scenes.Scene] = []
    questions: list[tuple[int, scenes.Question]] = []
    while len(questions) < n:
        number = len(drawn)
        kind, level = kinds[number % len(kinds)], 1 + number // len(kinds) % scenes.LEVELS
        scene = scenes.draw(kind, level, rng, settings.policy.coordinates)
        drawn.append(scene)
        chosen = rng.sample(scene.questions, min(per_screen, len(scene.questions), n - len(questions)))
        questions += [(number, question) for question in chosen]
    if not drawn:
        return []  # a workspace without screens has no Chromium
    # A thread of its own: the renderer must not run on a thread with an event loop.
    with ThreadPoolExecutor(1) as pool:
        screens = pool.submit(_screens, drawn, str(chromium.find(settings.sandbox))).result()
    return [_sample(screens[number], question) for number, question in questions]


def _screens(drawn: list[scenes.Scene], executable: str) -> list[bytes]:
    with Renderer(executable) as renderer:
        return [encode_png(picture) for picture in renderer.draw(drawn)]


def encode_png(pixels: np.ndarray) -> bytes:
    """uint8 [height, width, 3] as a PNG."""
    out = io.BytesIO()
    Picture.fromarray(pixels).save(out, format="PNG", compress_level=1)
    return out.getvalue()


def _sample(png: bytes, question: scenes.Question) -> GeneralSample:
    name = hashlib.sha256(png + question.instruction.encode() + question.response.encode()).hexdigest()
    return GeneralSample(f"g{name[:19]}", question.skill, png, question.instruction, question.response)
