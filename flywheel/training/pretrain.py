"""Pretraining of the base: a tiny model learns from general screens to see, to read and to point.

The recipe, found by measurement: weights drawn wide (`policy.model`), points in two digits, a dense description of
each screen among its questions, all questions of a screen in one sequence (`packing`), difficulty raised by
success, AdamW at 1e-3, and an average of the weights over time as the result.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import multiprocessing
import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from flywheel import settings as config
from flywheel.errors import TrainingError
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import SCREEN, load_model, new_model, save_checkpoint
from flywheel.policy.tokenizer import train_tokenizer
from flywheel.sandbox import chromium
from flywheel.synthesis import scenes, words
from flywheel.synthesis.render import Renderer
from flywheel.training.grounding import evaluate, success
from flywheel.training.packing import IGNORED, Packed, Packer, name_cells

log = logging.getLogger(__name__)

CHUNK = 256  # scenes drawn at once
BATCH = 32  # screens a step
QUESTIONS = 4  # at most, of one screen
RATE = 1e-3
WARMUP = 200
# Weights of a coordinate's two digits in the loss. The first says which thing is meant; the second is mostly noise at
# this resolution, and as loud.
TENS, UNITS = 3.0, 0.3
NAMING = 0.5  # weight of naming what each image token shows
DECAY = 0.998  # of the average over the weights
FIRST = ("shapes", "blocks")  # the kinds of scenes that training begins with
RAISE_AT = 0.7  # success at which a kind's level is raised
WINDOW = 300  # questions that this success is measured on


@dataclass
class Curriculum:
    """The level of each kind of scene, raised by success on the newest questions of that level."""

    levels: dict[str, int] = field(default_factory=lambda: dict.fromkeys(scenes.KINDS, 1))
    recent: dict[str, deque[bool]] = field(
        default_factory=lambda: {kind: deque(maxlen=WINDOW) for kind in scenes.KINDS}
    )

    @property
    def found(self) -> bool:
        """Whether all the first kinds are past level 2 (two to four things on a screen)."""
        return all(self.levels[kind] > 2 for kind in FIRST)

    def note(self, kind: str, level: int, success: bool) -> None:
        if level < self.levels[kind]:
            return
        recent = self.recent[kind]
        recent.append(success)
        if len(recent) == WINDOW and sum(recent) / WINDOW >= RAISE_AT and self.levels[kind] < scenes.LEVELS:
            self.levels[kind] += 1
            recent.clear()

    def plan(self, count: int, rng: random.Random) -> list[tuple[str, int]]:
        """Kinds and levels of the next scenes: more than half at the present level, the rest below it.

        The other kinds wait until the named one of several plain things is found: which thing a word means is learnt
        once, and many times sooner on the plainest screens than among all kinds.
        """
        kinds = [*scenes.KINDS, "blocks"] if self.found else list(FIRST)
        drawn = []
        for _ in range(count):
            kind = rng.choice(kinds)
            top = self.levels[kind]
            drawn.append((kind, top if rng.random() < 0.6 else rng.randint(1, top)))
        return drawn


def _end_with_parent() -> None:
    """In the drawing process: a killed parent must not leave it, and its browser, behind."""

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@cache
def _browser() -> Renderer:
    """In the drawing process: one browser for all chunks."""
    return Renderer(str(chromium.find(config.Sandbox()))).__enter__()


def _render(plan: Sequence[tuple[str, int]], seed: str, coordinates: int) -> tuple[np.ndarray, list[scenes.Scene]]:
    """In the drawing process."""
    rng = random.Random(seed)
    drawn = [scenes.draw(kind, level, rng, coordinates) for kind, level in plan]
    return _browser().draw(drawn), drawn


def _chunks(
    curriculum: Curriculum, seed: int, first: int, coordinates: int
) -> Iterator[tuple[int, np.ndarray, list[scenes.Scene]]]:
    """Chunks of scenes, the next ones being drawn in another process meanwhile."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=_end_with_parent) as pool:
        waiting: deque[Future[Any]] = deque()
        for number in range(first, 2**31):
            while len(waiting) < 2:
                name = f"{seed}/{number + len(waiting)}"
                waiting.append(pool.submit(_render, curriculum.plan(CHUNK, random.Random(name)), name, coordinates))
            pixels, drawn = waiting.popleft().result()
            yield number, pixels, drawn


def pretrain(
    out: Path,
    seed: int = 7,
    steps: int = 20_000,
    resume: bool = True,
    *,
    start: Path | None = None,
    seconds: float = math.inf,
    report_every: int = 50,
    evaluate_every: int = 1000,
    held_out: int = 24,
    policy: config.Policy | None = None,
) -> Path:
    """Train and return the checkpoint `out`/base (bfloat16 on disk), written at each evaluation and at the end.

    Resumable: `out`/state.pt holds weights, optimiser and counters. `out`/log.jsonl takes a line each
    `report_every` steps and each evaluation (on `held_out` scenes a kind). `start`: a checkpoint to go on from with
    a fresh optimiser. Stops after `steps` steps or `seconds`. Raises TrainingError for a loss that is not finite.
    """
    policy = policy or config.Policy()
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    encoder = Encoder.from_folder(start) if start else Encoder.new(train_tokenizer(words.corpus()), SCREEN)
    model = load_model(start) if start else new_model(seed)
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    curriculum, step, chunk = Curriculum(), 0, 0
    saved = out / "state.pt"
    if resume and saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        step, chunk, curriculum.levels = state["step"], state["chunk"], state["levels"]
    packer = Packer(encoder, SCREEN)
    digits = torch.tensor(encoder.tokenizer.convert_tokens_to_ids([str(digit) for digit in range(10)]))
    started = last = time.monotonic()
    losses: list[tuple[float, float]] = []
    seen = asked = 0

    def keep() -> None:
        state = {
            "model": model.state_dict(), "average": average.state_dict(), "optimizer": optimizer.state_dict(),
            "step": step, "chunk": chunk, "levels": curriculum.levels,
        }  # fmt: skip
        torch.save(state, saved.with_suffix(".tmp"))
        saved.with_suffix(".tmp").replace(saved)
        save_checkpoint(average, encoder, out / "base", dtype=torch.bfloat16)

    model.set_attn_implementation("sdpa_float32")
    model.train()
    for number, pixels, drawn in _chunks(curriculum, seed, chunk, policy.coordinates):
        chunk = number + 1
        rng = random.Random(f"{seed}/{number}/questions")
        order = list(range(len(drawn)))
        rng.shuffle(order)
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            chosen = [_choose(drawn[row].questions, rng, curriculum.found) for row in rows]
            packed = packer.pack(pixels[rows], [[(q.instruction, q.response) for q in asked] for asked in chosen])
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (step + 1) / WARMUP)
            cells = name_cells(encoder, [drawn[row].shown for row in rows], SCREEN, SCREEN // 32)
            loss, naming, predicted = _loss(model, packed, cells, digits)
            if not math.isfinite(loss.item()):
                raise TrainingError("the loss is not finite", where=f"pretraining, step {step}")
            optimizer.zero_grad(set_to_none=True)
            (loss + NAMING * naming).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            _follow(average, model, min(DECAY, (step + 1) / (step + 10)))
            _mark(curriculum, encoder, packed, predicted, [drawn[row] for row in rows], chosen, policy.coordinates)
            step += 1
            seen, asked = seen + len(rows), asked + sum(len(some) for some in chosen)
            losses.append((loss.item(), naming.item()))
            if step % report_every == 0:
                now = time.monotonic()
                _write(out, {
                    "step": step, "loss": round(float(np.mean(losses, axis=0)[0]), 4),
                    "naming": round(float(np.mean(losses, axis=0)[1]), 4), "scenes_s": round(seen / (now - last), 1),
                    "questions_s": round(asked / (now - last), 1), "seconds": round(now - started),
                    "levels": curriculum.levels,
                    "recent": {kind: round(float(np.mean(r)), 2) for kind, r in curriculum.recent.items() if r},
                })  # fmt: skip
                losses, seen, asked, last = [], 0, 0, now
            ended = step >= steps or time.monotonic() - started > seconds
            if step % evaluate_every == 0 or ended:
                keep()
                result = evaluate(average, encoder, policy, seed=seed, scenes_a_kind=held_out)
                _write(out, {"step": step, "evaluation": result})
                last = time.monotonic()
            if ended:
                return out / "base"
    return out / "base"


def _choose(questions: Sequence[scenes.Question], rng: random.Random, describe: bool) -> list[scenes.Question]:
    """Some of a screen's questions; with `describe` its description among them, else only where there is no other.

    While the model learns which thing a word means, descriptions (which go from place to name) hold it back.
    """
    first, *others = sorted(questions, key=lambda q: q.skill not in ("describe", "read"))
    if not describe and others:
        return rng.sample(others, min(len(others), QUESTIONS - 1))
    return [first, *rng.sample(others, min(len(others), QUESTIONS - 1))]


def _attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args, **kwargs):
    """Attention in float32 within bfloat16 autocast: its bfloat16 gradient is three times slower on a CPU."""
    with torch.autocast("cpu", enabled=False):
        return sdpa_attention_forward(module, query.float(), key.float(), value.float(), *args, **kwargs)


AttentionInterface.register("sdpa_float32", _attention)


def _loss(
    model: torch.nn.Module, packed: Packed, cells: tuple[torch.Tensor, torch.Tensor], digits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean cross-entropy over the response tokens; over the words for each image token; the tokens predicted.

    The second is what makes a small model see early: each image token, as it enters the language model, must name
    what it shows in the language model's own (tied) word space, where the words of an instruction can find it.
    """
    inputs = dict(packed.inputs)
    core = model.model
    with torch.autocast("cpu", torch.bfloat16):
        images = core.get_image_features(inputs.pop("pixel_values"), inputs["image_grid_thw"])
        hidden = core(**inputs, mm_encoder_outputs={"image": images}, use_cache=False)[0]
        where = packed.labels[:, 1:] != IGNORED
        logits = model.lm_head(hidden[:, :-1][where])
        named = model.lm_head(core.language_model.norm(torch.cat(list(images.pooler_output))))
    target = packed.labels[:, 1:][where]
    words_, weights = cells
    naming = -(named.float().log_softmax(-1).gather(1, words_) * weights).sum()
    losses = torch.nn.functional.cross_entropy(logits.float(), target, reduction="none")
    weights = _digit_weights(packed.labels, digits)[:, 1:][where]
    return (losses * weights).sum() / weights.sum(), naming, logits.detach().argmax(-1)


def _digit_weights(labels: torch.Tensor, digits: torch.Tensor) -> torch.Tensor:
    """TENS for the first digit of a pair, UNITS for the second, 1 elsewhere: [batch, length], as `labels`.

    digits: the ids of the digits' tokens.
    """
    digit = torch.isin(labels, digits)
    after, before = torch.zeros_like(digit), torch.zeros_like(digit)
    after[:, 1:], before[:, :-1] = digit[:, :-1], digit[:, 1:]
    weights = torch.ones(labels.shape)
    weights[digit & before & ~after] = TENS
    weights[digit & after] = UNITS
    return weights


@torch.no_grad()
def _follow(average: torch.nn.Module, model: torch.nn.Module, decay: float) -> None:
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)


def _mark(
    curriculum: Curriculum,
    encoder: Encoder,
    packed: Packed,
    predicted: torch.Tensor,
    drawn: Sequence[scenes.Scene],
    chosen: Sequence[Sequence[scenes.Question]],
    coordinates: int,
) -> None:
    """Note success with the true tokens before each (a free by-product of the training step)."""
    where = packed.labels[:, 1:] != IGNORED
    row_of = where.nonzero()[:, 0]
    question_of = packed.question[:, 1:][where]
    for row, scene in enumerate(drawn):
        mine = row_of == row
        tokens, numbers = predicted[mine], question_of[mine]
        for number, question in enumerate(chosen[row]):
            if question.skill not in ("describe", "read"):
                text = encoder.decode(tokens[numbers == number].tolist())
                curriculum.note(scene.kind, scene.level, success(question, text, coordinates))


def _write(out: Path, record: dict[str, Any]) -> None:
    line = json.dumps(record)
    log.info("%s", line)
    with (out / "log.jsonl").open("a") as file:
        file.write(line + "\n")
