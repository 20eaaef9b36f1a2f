"""Tokens a second of the policy in this process: singly arriving requests against transformers' own `generate`.

Every answer has the same number of tokens on all sides, the end token ignored. Both sides begin with a context (PNG and
text) and encode it with the same encoder, in the time that is measured. Screens and instructions are new in every
repetition, so nothing is known from an earlier one. Each side has a process of its own;
they alternate, and the figures are medians over the repetitions.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import numpy as np
import torch
from bench_case import BenchCase, compare_with_peer, emit_case, exit_code
from PIL import Image as Picture
from PIL import ImageDraw

from flywheel import config
from flywheel.agent.prompt import Context, Image, Message
from flywheel.policy.encoding import Encoder, collate_sequences
from flywheel.policy.inference.embedded import EmbeddedPolicy
from flywheel.policy.model import load_model
from flywheel.policy.protocol import SamplingParams
from flywheel.utils.errors import PolicyTimeout

REQUESTS = 16
DEADLINE_S = 300
WORDS = ("red", "green", "blue", "tall", "small", "round", "next", "last", "tile", "field", "button", "row", "menu")


def screens(side: int) -> Iterator[bytes]:
    """Flat shapes on a plain page, no two alike."""
    rng = np.random.default_rng(0)
    while True:
        picture = Picture.new("RGB", (side, side), (245, 245, 240))
        pen = ImageDraw.Draw(picture)
        for x, y, w, h, *colour in rng.integers(0, 200, (9, 7)).tolist():
            pen.rectangle((x, y, x + 8 + w // 3, y + 8 + h // 4), fill=tuple(colour[:3]))
        out = io.BytesIO()
        picture.save(out, format="PNG")
        yield out.getvalue()


def contexts(side: int) -> Iterator[Context]:
    rng = np.random.default_rng(1)
    for screen in screens(side):
        text = " ".join(rng.choice(WORDS, int(rng.integers(6, 14))))
        yield (Message("user", (Image(screen), f"Click the {text}.")),)


class Library:
    """The peer: the same checkpoint and encoder, and the library's `generate`, for a whole batch or one by one."""

    def __init__(self, folder: Path, settings: config.PolicySettings, *, singly: bool) -> None:
        self.model = load_model(folder, dtype=settings.dtype, device=settings.device)
        self.encoder, self.singly = Encoder.from_folder(folder), singly
        self.model.generation_config.eos_token_id = None  # every answer to its full length

    @torch.inference_mode()
    def answer(self, asked: Sequence[Context], tokens: int) -> int:
        parts = [[one] for one in asked] if self.singly else [asked]
        return sum(self._batch(part, tokens) for part in parts)

    def _batch(self, asked: Sequence[Context], tokens: int) -> int:
        batch = collate_sequences([self.encoder.encode(context) for context in asked], "left")
        batch = {name: tensor.to(self.model.device) for name, tensor in batch.items()}
        out = self.model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=tokens)
        return int((out.shape[1] - batch["input_ids"].shape[1]) * len(asked))


class Ours:
    """Requests that arrive singly, each a task of its own."""

    def __init__(self, folder: Path, settings: config.PolicySettings) -> None:
        self.policy = EmbeddedPolicy(folder, settings)

    def answer(self, asked: Sequence[Context], tokens: int) -> int:
        return asyncio.run(self._all(asked, tokens))

    async def _all(self, asked: Sequence[Context], tokens: int) -> int:
        return sum(await asyncio.gather(*(self._one(number, context, tokens) for number, context in enumerate(asked))))

    async def _one(self, number: int, context: Context, tokens: int) -> int:
        done = await self.policy.complete(context, SamplingParams(max_new_tokens=tokens, seed=number, ignore_end=True))
        return len(done.token_ids)


class Side:
    """A process of its own for each side, idle while another is measured. In one process they would hinder each other:
    OpenMP keeps a team for every thread that computes, and slows all down where these are more than the cores."""

    def __init__(self, make: Callable[[], Library | Ours]) -> None:
        context = multiprocessing.get_context("fork")  # this process computes nothing, so a fork finds no team
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, theirs), daemon=True)
        self._process.start()

    def rate(self, asked: Sequence[Context], tokens: int) -> float:
        """Tokens a second."""
        self._pipe.send((asked, tokens))
        if not self._pipe.poll(DEADLINE_S):
            raise PolicyTimeout(f"no answer within {DEADLINE_S} s", where="bench policy")
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(DEADLINE_S)


def _serve(make: Callable[[], Library | Ours], pipe: Connection) -> None:
    side = make()
    while (message := pipe.recv()) is not None:
        begin = time.perf_counter()
        pipe.send(side.answer(*message) / (time.perf_counter() - begin))


def measured(
    sides: Mapping[str, Callable[[], Library | Ours]], draw: Callable[[], Sequence[Context]], tokens: int, n: int
) -> dict[str, list[float]]:
    """Tokens a second of each side, `n` times, each with contexts of its own, in alternating order."""
    running = {name: Side(make) for name, make in sides.items()}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for repetition in range(n + 1):  # the first warms up
        for name in list(sides)[:: 1 if repetition % 2 else -1]:
            value = running[name].rate(draw(), tokens)
            if repetition:
                found[name].append(value)
    for side in running.values():
        side.close()
    return found


def against_the_library(
    folder: Path, settings: config.PolicySettings, fresh: Iterator[Context], tokens: int, repetitions: int
) -> list[BenchCase]:
    sides = {
        "ours": partial(Ours, folder, settings),
        "static": partial(Library, folder, settings, singly=False),
        "single": partial(Library, folder, settings, singly=True),
    }
    found = measured(sides, lambda: [next(fresh) for _ in range(REQUESTS)], tokens, repetitions)
    facts = {"n": repetitions, "requests": REQUESTS, "tokens": tokens, "threads": torch.get_num_threads()}
    return [
        emit_case(
            compare_with_peer(
                "policy",
                case,
                "tokens/s",
                ours=median(found["ours"]),
                peer=median(found[side]),
                peer_name=name,
                goal=goal,
                **facts,
                measured="encoding included on both sides",
                ours_all=found["ours"],
                peer_all=found[side],
            )
        )
        for case, side, name, goal in (
            ("concurrent16_vs_static", "static", "transformers generate, one batch of 16", 0.8),
            ("concurrent16_vs_single", "single", "transformers generate, one at a time", 4.0),
        )
    ]


def shared_prefix(
    folder: Path, settings: config.PolicySettings, fresh: Iterator[Context], tokens: int, repetitions: int
) -> BenchCase:
    """16 samples of one context, new in each repetition, by a policy that shares and by one that does not."""
    sides = {
        "ours": partial(Ours, folder, settings),
        "peer": partial(Ours, folder, settings.model_copy(update={"cache_mb": 0})),
    }
    found = measured(sides, lambda: [next(fresh)] * REQUESTS, tokens, repetitions)
    return emit_case(
        compare_with_peer(
            "policy",
            "shared_prefix",
            "tokens/s",
            ours=median(found["ours"]),
            peer=median(found["peer"]),
            peer_name="the same policy with nothing shared (policy.cache_mb 0)",
            goal=1.0,
            n=repetitions,
            requests=REQUESTS,
            tokens=tokens,
            threads=torch.get_num_threads(),
            ours_all=found["ours"],
            peer_all=found["peer"],
        )
    )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="flywheel bench policy", description=__doc__)
    parser.add_argument("--model", default="models/base", help="checkpoint folder")
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--side", type=int, default=224, help="of the screens, in pixels")
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args(argv)
    folder = Path(options.model)
    if not folder.exists() and not folder.is_absolute():
        folder = Path(__file__).resolve().parent.parent / folder
    settings = config.PolicySettings(max_num_seqs=REQUESTS)
    fresh = contexts(options.side)
    cases = against_the_library(folder, settings, fresh, options.tokens, options.repetitions)
    cases.append(shared_prefix(folder, settings, fresh, options.tokens, options.repetitions))
    return exit_code(cases)
