"""Pretraining of the base: a tiny model learns from general screens to see, to read and to point.

The recipe, found by measurement: weights drawn wide (`policy.model`), points in two digits, five aids beside the
answers' loss (`objectives`), a dense description of each screen among its questions, all questions of a screen in
one sequence (`packing`), AdamW at 1e-3 with a warm-up and a cool-down, and an average of the weights over time as the
result.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from flywheel import settings as config
from flywheel.errors import BadInput, TrainingError, of_place
from flywheel.policy import checkpoint
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import SCREEN, load_model, new_model, save_checkpoint
from flywheel.policy.tokenizer import train_tokenizer
from flywheel.synthesis import scenes, words
from flywheel.training import attention
from flywheel.training.drawing import chunks, end_with_parent
from flywheel.training.mixture import Tally
from flywheel.training.objectives import WEIGHTS, Aids, Shown, losses, seeing
from flywheel.training.packing import IGNORED, Packed, Packer
from flywheel.training.skills import DESCRIBING, evaluate, success
from flywheel.training.targets import name_cells, place_cells, read_cells, spell_patches

log = logging.getLogger(__name__)

CELLS = SCREEN // 32  # image tokens across a screen
BATCH = 16  # screens a step, over all processes
QUESTIONS = 4  # at most, of one screen
READINGS = 4  # at most, beside these: short, and what is learnt last
RATE = 1e-3
WARMUP = 200
SEEING_BATCH = 8  # screens of a step in which it learns to see
COOLDOWN = 0.25  # the last share of the other steps, in which the rate falls to a twentieth
DECAY = 0.998  # of the average over the weights
KINDS = list(scenes.KINDS)


@dataclass(frozen=True)
class Recipe:
    """What one pretraining does. out: its folder. start: a checkpoint to go on from.

    steps: gradient steps in all. seeing: those of them, the first, in which it learns to name what it sees and no more.
    processes: they share each batch; the result depends on their number as on a seed.
    held_out: scenes a kind in each evaluation.
    """

    out: Path
    seed: int = 7
    steps: int = 12_000
    seeing: int = 7_000
    start: Path | None = None
    seconds: float = math.inf
    processes: int = 1
    report_every: int = 50
    evaluate_every: int = 1000
    held_out: int = 24
    policy: config.Policy = field(default_factory=config.Policy)


def pretrain(recipe: Recipe, *, resume: bool = True) -> Path:
    """Train and return the checkpoint `out`/base (bfloat16 on disk), written at each evaluation and at the end.

    Resumable: `out`/state.pt holds weights, optimiser and counters. `out`/log.jsonl takes a line each
    `report_every` steps and each evaluation. Stops after `steps` steps, or `seconds` of this call.
    Raises TrainingError for a loss that is not finite, ModelError for a `start` that is not a model, BadInput for a
    number of processes that does not share the batches evenly.
    """
    if SEEING_BATCH % recipe.processes:
        raise BadInput(
            f"{recipe.processes} processes do not share {SEEING_BATCH} screens evenly", where="pretraining",
            fix="take 1, 2, 4 or 8",
        )  # fmt: skip
    if recipe.start:
        checkpoint.check(recipe.start)
    with of_place(recipe.out):
        recipe.out.mkdir(parents=True, exist_ok=True)
    if not resume:
        (recipe.out / "state.pt").unlink(missing_ok=True)
    if recipe.processes == 1:
        _Training(recipe, 0).run()
    else:
        with tempfile.TemporaryDirectory() as folder:
            try:
                torch.multiprocessing.spawn(_join, (recipe, f"{folder}/meeting"), nprocs=recipe.processes)
            except torch.multiprocessing.ProcessRaisedException as error:
                log.error("%s", error)
                raise TrainingError(str(error).strip().splitlines()[-1], where="a process of pretraining") from None
    return recipe.out / "base"


def _join(rank: int, recipe: Recipe, meeting: str) -> None:
    """One of several processes."""
    end_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=recipe.processes)
    try:
        _Training(recipe, rank).run()
    finally:
        dist.destroy_process_group()


class _Training:
    """Weights, optimiser, tally and counters of one process; they are the same in all."""

    def __init__(self, recipe: Recipe, rank: int) -> None:
        self.recipe, self.rank = recipe, rank
        torch.manual_seed(recipe.seed)
        start = recipe.start
        self.encoder = Encoder.from_folder(start) if start else Encoder.new(train_tokenizer(words.corpus()), SCREEN)
        self.model = load_model(start) if start else new_model(recipe.seed)
        self.average = copy.deepcopy(self.model)
        shape = self.model.config
        self.aids = Aids(shape.text_config.hidden_size, shape.vision_config.hidden_size)
        self.parameters = [*self.model.parameters(), *self.aids.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
        self.tally, self.step, self.chunk = Tally(), 0, 0
        self._restore()
        self.packer = Packer(self.encoder, SCREEN)
        self.digits = torch.tensor(self.encoder.tokenizer.convert_tokens_to_ids([str(digit) for digit in range(10)]))
        attention.install(self.model)
        self.model.train()
        self.report = _Report(recipe.out, rank == 0)

    def run(self) -> None:
        recipe, began = self.recipe, time.monotonic()
        stream = chunks(f"{recipe.seed}/{self.rank}", self.chunk, recipe.policy.coordinates)
        with closing(stream):
            self._follow(stream, began)

    def _follow(self, stream: Iterator[Any], began: float) -> None:
        recipe = self.recipe
        for number, pixels, drawn in stream:
            self.chunk = number + 1
            rng = random.Random(f"{recipe.seed}/{self.rank}/{number}/questions")
            order = rng.sample(range(len(drawn)), len(drawn))
            while order:
                rows = (SEEING_BATCH if self.step < self.recipe.seeing else BATCH) // recipe.processes
                chosen, order = order[:rows], order[rows:]
                self._step(pixels[chosen], [drawn[row] for row in chosen], rng)
                ended = self._together(self.step >= recipe.steps or time.monotonic() - began > recipe.seconds)
                if self.step % recipe.report_every == 0:
                    self.report.write(self.step, self.tally.success)
                if self.step % recipe.evaluate_every == 0 or ended:
                    self._keep()
                if ended:
                    return

    def _step(self, pixels: np.ndarray, drawn: Sequence[scenes.Scene], rng: random.Random) -> None:
        chosen = [_choose(scene.questions, rng) if self.step >= self.recipe.seeing else [] for scene in drawn]
        packed = self.packer.pack(pixels, chosen)
        things = [scene.shown for scene in drawn]
        texts = [scene.texts for scene in drawn]
        shown = Shown(
            name_cells(self.encoder, things, SCREEN, CELLS), place_cells(things, SCREEN, CELLS),
            spell_patches(texts, SCREEN, 2 * CELLS, 2), read_cells(texts, SCREEN, CELLS),
        )  # fmt: skip
        if self.step < self.recipe.seeing:
            lost = seeing(self.model, self.aids, packed, shown)
        else:
            lost = losses(self.model, self.aids, packed, shown, self.digits)
        self.optimizer.zero_grad(set_to_none=True)
        lost.total.backward()
        counts = self._counts(packed, lost.predicted, drawn, chosen)
        total, counts = self._share(lost.total.item(), counts)
        if not math.isfinite(total):
            raise TrainingError("the loss is not finite", where=f"pretraining, step {self.step}")
        for kind, (hits, asked) in zip(KINDS, counts.tolist(), strict=True):
            self.tally.note(kind, round(hits), round(asked))
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * self._schedule()
        self.optimizer.step()
        since = self.step - (self.recipe.seeing if self.step >= self.recipe.seeing else 0)  # forgets what came before
        decay = min(DECAY, (since + 1) / (since + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 - decay)
        self.step += 1
        self.report.note(lost, len(drawn), sum(len(some) for some in chosen))

    def _schedule(self) -> float:
        """Warm up, stay, and cool down at the end."""
        others = max(1, self.recipe.steps - self.recipe.seeing)  # a run that only sees does not cool down
        left = (self.recipe.steps - self.step) / (COOLDOWN * others)
        return min(1.0, (self.step + 1) / WARMUP, max(0.05, left))

    def _share(self, loss: float, counts: torch.Tensor) -> tuple[float, torch.Tensor]:
        """Average the gradients over the processes in one exchange, the loss with them, and add up the counts."""
        if self.recipe.processes == 1:
            return loss, counts
        parts = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        flat = torch.cat([*(part.reshape(-1) for part in parts), torch.tensor([loss]), counts.reshape(-1)])
        dist.all_reduce(flat)
        size = sum(part.numel() for part in parts)
        flat[: size + 1] /= self.recipe.processes
        for piece, part in zip(flat[:size].split([part.numel() for part in parts]), parts, strict=True):
            part.copy_(piece.view_as(part))
        return flat[size].item(), flat[size + 1 :].view_as(counts)

    def _together(self, ended: bool) -> bool:
        """Whether any process says so: they must stop at the same step."""
        if self.recipe.processes == 1 or math.isinf(self.recipe.seconds):
            return ended
        flag = torch.tensor([float(ended)])
        dist.all_reduce(flag)
        return flag.item() > 0

    def _counts(
        self, packed: Packed, predicted: torch.Tensor, drawn: Sequence[scenes.Scene], chosen: list[list]
    ) -> torch.Tensor:
        """[kinds, 2]: hits and questions of each kind, with the true tokens before each (a free by-product)."""
        counts = torch.zeros(len(KINDS), 2)
        where = packed.labels[:, 1:] != IGNORED
        row_of, question_of = where.nonzero()[:, 0], packed.question[:, 1:][where]
        for row, scene in enumerate(drawn):
            mine = row_of == row
            tokens, numbers = predicted[mine], question_of[mine]
            for number, question in enumerate(chosen[row]):
                if question.skill not in DESCRIBING:
                    text = self.encoder.decode(tokens[numbers == number].tolist())
                    hit = success(question, text, self.recipe.policy.coordinates)
                    counts[KINDS.index(scene.kind)] += torch.tensor([float(hit), 1.0])
        return counts

    def _restore(self) -> None:
        saved = self.recipe.out / "state.pt"
        if not saved.exists():
            return
        state = torch.load(saved, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self.aids.load_state_dict(state["aids"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.chunk = state["step"], state["chunk"]

    def _keep(self) -> None:
        """Save, and evaluate the average; the first process does it for all."""
        if self.rank == 0:
            recipe, out = self.recipe, self.recipe.out
            state = {
                "model": self.model.state_dict(), "average": self.average.state_dict(),
                "aids": self.aids.state_dict(),
                "optimizer": self.optimizer.state_dict(), "step": self.step, "chunk": self.chunk,
            }  # fmt: skip
            torch.save(state, out / "state.tmp")
            (out / "state.tmp").replace(out / "state.pt")
            save_checkpoint(self.average, self.encoder, out / "base", dtype=torch.bfloat16)
            found = evaluate(self.average, self.encoder, recipe.policy, seed=recipe.seed, scenes_a_kind=recipe.held_out)
            self.report.evaluation(self.step, found)
        if self.recipe.processes > 1:
            dist.barrier()


def _choose(questions: Sequence[scenes.Question], rng: random.Random) -> list[scenes.Question]:
    """Some of a screen's questions, its description among them every second time, and some more that read."""
    reads = [question for question in questions if question.skill == "read"]
    rest = [question for question in questions if question.skill != "read"]
    # Numbers before words: a word is told by any of its letters, a number only by all of its digits.
    chosen = sorted(rng.sample(reads, len(reads)), key=lambda question: not question.response.isdigit())[:READINGS]
    return [*_some(rest, rng), *chosen]


def _some(questions: Sequence[scenes.Question], rng: random.Random) -> list[scenes.Question]:
    first, *others = sorted(questions, key=lambda q: q.skill not in DESCRIBING)
    if others and rng.random() < 0.5:
        return rng.sample(others, min(len(others), QUESTIONS))
    return [first, *rng.sample(others, min(len(others), QUESTIONS - 1))]


class _Report:
    """`log.jsonl`: means since the last line, and evaluations. Silent where it is not the first process."""

    def __init__(self, out: Path, speaks: bool) -> None:
        self._file, self._speaks = out / "log.jsonl", speaks
        self._began = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        self._last, self._seen, self._asked = time.monotonic(), 0, 0
        self._losses: list[tuple[float, ...]] = []

    def note(self, lost: Any, seen: int, asked: int) -> None:
        self._losses.append(
            (lost.answers.item(), *(lost.aids[aid].item() if aid in lost.aids else 0.0 for aid in WEIGHTS), lost.right)
        )
        self._seen, self._asked = self._seen + seen, self._asked + asked

    def write(self, step: int, success: dict[str, float]) -> None:
        """scenes_s, questions_s: of this process."""
        now = time.monotonic()
        means = [round(float(mean), 4) for mean in np.mean(self._losses, axis=0)]
        self._line({
            "step": step, **dict(zip(("answers", *WEIGHTS, "right"), means, strict=True)),
            "scenes_s": round(self._seen / (now - self._last), 1),
            "questions_s": round(self._asked / (now - self._last), 1), "seconds": round(now - self._began),
            "success": {kind: round(value, 2) for kind, value in success.items()},
        })  # fmt: skip
        self._clear()

    def evaluation(self, step: int, result: dict[str, Any]) -> None:
        self._line({"step": step, "evaluation": result})
        self._clear()

    def _line(self, record: dict[str, Any]) -> None:
        if not self._speaks:
            return
        line = json.dumps(record)
        log.info("%s", line)
        with self._file.open("a") as file:
            file.write(line + "\n")
