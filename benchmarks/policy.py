"""Tokens a second of the policy in this process: singly arriving requests against transformers' own `generate`.

Every answer has the same number of tokens on all sides, the end token ignored. Both sides begin with a context (PNG and
text) and encode it with the same encoder, in the time that is measured. Screens and instructions are new in every
repetition, so nothing is known from an earlier one. Sides alternate; the figures are medians over the repetitions.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image as Picture
from PIL import ImageDraw
from transformers import PreTrainedModel

from flywheel import settings as config
from flywheel.bench import Case, compare, emit, exit_code
from flywheel.policy.embedded import EmbeddedPolicy
from flywheel.policy.encoding import Encoder, collate
from flywheel.policy.model import load_model
from flywheel.policy.protocol import Context, Image, Message, Sampling

REQUESTS = 16
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
    """The peer: the same checkpoint and encoder, and the library's `generate`."""

    def __init__(self, model: PreTrainedModel, encoder: Encoder, tokens: int) -> None:
        self.model, self.encoder, self.tokens = model, encoder, tokens
        model.generation_config.eos_token_id = None  # every answer to its full length

    @torch.inference_mode()
    def answer(self, asked: list[Context]) -> int:
        batch = collate([self.encoder.encode(context) for context in asked], "left")
        batch = {name: tensor.to(self.model.device) for name, tensor in batch.items()}
        out = self.model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=self.tokens)
        return int((out.shape[1] - batch["input_ids"].shape[1]) * len(asked))


def ours(policy: EmbeddedPolicy, asked: list[Context], tokens: int) -> int:
    """Requests that arrive singly, each a task of its own."""

    async def ask(number: int, context: Context) -> int:
        done = await policy.complete(context, Sampling(max_new_tokens=tokens, seed=number, ignore_end=True))
        return len(done.token_ids)

    async def all_of_them() -> int:
        return sum(await asyncio.gather(*(ask(number, context) for number, context in enumerate(asked))))

    return asyncio.run(all_of_them())


def rate(work: Callable[[], int]) -> float:
    """Tokens a second."""
    begin = time.perf_counter()
    return work() / (time.perf_counter() - begin)


def against_the_library(
    policy: EmbeddedPolicy, library: Library, fresh: Iterator[Context], tokens: int, repetitions: int
) -> list[Case]:
    found: dict[str, list[float]] = {"ours": [], "static": [], "single": []}
    for repetition in range(repetitions + 1):  # the first warms up
        asked = [next(fresh) for _ in range(3 * REQUESTS)]
        mine, batched, singly = asked[:REQUESTS], asked[REQUESTS : 2 * REQUESTS], asked[2 * REQUESTS :]
        sides = {
            "ours": lambda: ours(policy, mine, tokens),  # noqa: B023
            "static": lambda: library.answer(batched),  # noqa: B023
            "single": lambda: sum(library.answer([context]) for context in singly),  # noqa: B023
        }
        order = list(sides) if repetition % 2 else list(sides)[::-1]
        measured = {name: rate(sides[name]) for name in order}
        if repetition:
            for name, value in measured.items():
                found[name].append(value)
    facts = {"n": repetitions, "requests": REQUESTS, "tokens": tokens, "threads": torch.get_num_threads()}
    unit = "tokens/s"
    mine = median(found["ours"])
    return [
        emit(
            compare(
                "policy", case, unit, ours=mine, peer=median(found[side]), peer_name=name, goal=goal, **facts,
                measured="encoding included on both sides", ours_all=found["ours"], peer_all=found[side],
            )
        )
        for case, side, name, goal in (
            ("concurrent16_vs_static", "static", "transformers generate, one batch of 16", 0.8),
            ("concurrent16_vs_single", "single", "transformers generate, one at a time", 4.0),
        )
    ]  # fmt: skip


def shared_prefix(
    folder: Path, settings: config.Policy, fresh: Iterator[Context], tokens: int, repetitions: int
) -> Case:
    """16 samples of one context, new in each repetition, by a policy that shares and by one that does not."""
    policies = {
        "ours": EmbeddedPolicy(folder, settings),
        "peer": EmbeddedPolicy(folder, settings.model_copy(update={"cache_mb": 0})),
    }
    found: dict[str, list[float]] = {name: [] for name in policies}
    for repetition in range(repetitions + 1):  # the first warms up
        for name, policy in sorted(policies.items(), reverse=bool(repetition % 2)):
            asked = [next(fresh)] * REQUESTS
            measured = rate(lambda: ours(policy, asked, tokens))  # noqa: B023
            if repetition:
                found[name].append(measured)
    for policy in policies.values():
        asyncio.run(policy.close())
    return emit(
        compare(
            "policy", "shared_prefix", "tokens/s", ours=median(found["ours"]), peer=median(found["peer"]),
            peer_name="the same policy with nothing shared (policy.cache_mb 0)", goal=1.0, n=repetitions,
            requests=REQUESTS, tokens=tokens, threads=torch.get_num_threads(), ours_all=found["ours"],
            peer_all=found["peer"],
        )
    )  # fmt: skip


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
    settings = config.Policy(batch=REQUESTS)
    fresh = contexts(options.side)
    policy = EmbeddedPolicy(folder, settings)
    model = load_model(folder, dtype=settings.dtype, device=settings.device)
    library = Library(model, Encoder.from_folder(folder), options.tokens)
    cases = against_the_library(policy, library, fresh, options.tokens, options.repetitions)
    asyncio.run(policy.close())
    cases.append(shared_prefix(folder, settings, fresh, options.tokens, options.repetitions))
    return exit_code(cases)
