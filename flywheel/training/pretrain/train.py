"""Pretraining of the base: a tiny model learns from general screens to see, to read and to point.

The recipe, found by measurement: weights drawn wide (`policy.model`), points in two digits, aids beside the
answers' loss (`objectives`), a dense description of each screen among its questions, all questions of a screen in
one sequence (`question_batch`), AdamW at 1e-3 with a warm-up and a cool-down, and an average of the weights over time
as the result. A base that sees learns to copy out of texts in a run of its own (`copying`).
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from flywheel import scenes, words
from flywheel import settings as config
from flywheel.errors import BadInput, of_place
from flywheel.policy import checkpoint
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import SCREEN, load_model, new_model, save_checkpoint
from flywheel.policy.tokenizer import train_tokenizer
from flywheel.scenes.gestures import typing
from flywheel.training.parallel.engine import added, gradient_step, open_engine
from flywheel.training.parallel.workers import WorkerGroup
from flywheel.training.pretrain import attention, copying, objectives
from flywheel.training.pretrain.copying import CopyBatch
from flywheel.training.pretrain.evaluate import DESCRIBING, evaluate, success
from flywheel.training.pretrain.log import Log
from flywheel.training.pretrain.mixture import KindAccuracy
from flywheel.training.pretrain.objectives import Aids, Losses, Shown, losses, seeing
from flywheel.training.pretrain.question_batch import IGNORED, QuestionBatch, QuestionCollator
from flywheel.training.pretrain.render_worker import chunks
from flywheel.training.pretrain.targets import name_cells, place_cells, read_cells, spell_patches
from flywheel.training.state import TrainState

CELLS = SCREEN // 32  # image tokens across a screen
BATCH = 16  # screens a step, over all processes
QUESTIONS = 4  # at most, of one screen
READINGS = 4  # at most, beside these: short, and what is learnt last
RATE = 1e-3
WARMUP = 200
SEEING_BATCH = 8  # screens of a step in which it learns to see
COPYING_BATCH = 8  # screens of a step in which it learns to copy, beside
TYPINGS = 3  # questions to type a name, of each of its screens
TEXTS = 32  # in which names come again
COOLDOWN = 0.25  # the last share of the other steps, in which the rate falls to a twentieth
DECAY = 0.998  # of the average over the weights
KINDS = list(scenes.KINDS)
OPTIMIZER = config.Optimizer(beta2=0.98)
_KEY = "pretraining 2"  # of the state on disk: that of another format is not taken up
_LIMIT_S = 6 * 3600  # for the steps between two evaluations, where several processes wait for one another


@dataclass(frozen=True)
class Recipe:
    """What one pretraining does. out: its folder. start: a checkpoint to go on from.

    steps: gradient steps in all. seeing: those of them, the first, in which it learns to name what it sees and no more.
    copying: beside its questions it learns to copy out of texts, and its vision tower and its words rest. For a start
    that sees already.
    optimizer: its processes share each batch; the result depends on their number as on a seed.
    chunk: scenes that a process draws at once; the result depends on it as on a seed. held_out: scenes a kind in each
    evaluation.
    """

    out: Path
    seed: int = 7
    steps: int = 12_000
    seeing: int = 7_000
    copying: bool = False
    start: Path | None = None
    seconds: float = math.inf
    optimizer: config.Optimizer = OPTIMIZER
    chunk: int = 256
    report_every: int = 50
    evaluate_every: int = 1000
    held_out: int = 24
    policy: config.Policy = field(default_factory=config.Policy)


def pretrain(recipe: Recipe, *, resume: bool = True) -> Path:
    """Train and return the checkpoint `out`/base (bfloat16 on disk), written at each evaluation and at the end.

    Resumable: `out`/state.pt holds weights, optimiser and counters. `out`/log.jsonl takes a line each
    `report_every` steps and each evaluation. Stops after `steps` steps, or `seconds` of this call.
    Raises TrainingError for a loss that is not finite, ModelError for a `start` that is not a model, BadInput for a
    number of processes that does not share the batches evenly, and for a state that an earlier version left.
    """
    size = recipe.optimizer.processes
    if recipe.copying and (recipe.seeing or not recipe.start):
        raise BadInput("only a base that sees learns to copy", where="pretraining", fix="add --start MODEL --seeing 0")
    if SEEING_BATCH % size:
        raise BadInput(
            f"{size} processes do not share {SEEING_BATCH} screens evenly", where="pretraining", fix="take 1, 2, 4 or 8"
        )
    if recipe.start:
        checkpoint.check(recipe.start)
    with of_place(recipe.out):
        recipe.out.mkdir(parents=True, exist_ok=True)
    if not resume:
        (recipe.out / "state.pt").unlink(missing_ok=True)
    workers = WorkerGroup(partial(Pretrainer, recipe), size, 1, _LIMIT_S, "--processes")
    try:
        while not workers.call("go_on"):
            pass
    finally:
        workers.close()
    return recipe.out / "base"


class _Pupil(nn.Module):
    """What is trained: the model, and the aids that it leaves behind."""

    def __init__(self, model: nn.Module, aids: Aids, digits: Tensor) -> None:
        super().__init__()
        self.model, self.aids, self._digits = model, aids, digits

    def forward(self, packed: QuestionBatch | CopyBatch, shown: Shown | None, only_sees: bool) -> Losses:
        if isinstance(packed, CopyBatch):
            return objectives.copying(self.model, packed)
        if only_sees and shown:
            return seeing(self.model, self.aids, packed, shown)
        return losses(self.model, self.aids, packed, shown, self._digits)


class Pretrainer(TrainState):
    """What each process of pretraining does: weights, optimiser, tally and counters, which are the same in all."""

    counters = ("step", "chunk")

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        torch.manual_seed(recipe.seed)
        start = recipe.start
        self.encoder = Encoder.from_folder(start) if start else Encoder.new(train_tokenizer(words.corpus()), SCREEN)
        self.model = load_model(start) if start else new_model(recipe.seed)
        self.average = copy.deepcopy(self.model)
        shape = self.model.config
        aids = Aids(shape.text_config.hidden_size, shape.vision_config.hidden_size)
        digits = torch.tensor(self.encoder.tokenizer.convert_tokens_to_ids([str(digit) for digit in range(10)]))
        if recipe.copying:
            for rests in (self.model.base_model.visual, self.model.get_input_embeddings(), aids):
                rests.requires_grad_(False)
        pupil = _Pupil(self.model, aids, digits)
        self.engine = open_engine(pupil, recipe.optimizer)
        super().__init__({"pupil": pupil, "average": self.average}, {"pupil": self.engine})
        self.tally, self.step, self.chunk = KindAccuracy(), 0, 0
        saved = recipe.out / "state.pt"
        if self.load(saved, _KEY) is None and saved.exists():
            raise BadInput(
                "the state is of an earlier version",
                where=saved,
                fix="move it away to begin anew, from its last checkpoint with --start",
            )
        self.collator = QuestionCollator(self.encoder, SCREEN)
        attention.install(self.model)
        self.model.train()
        self.report = Log(recipe.out, self.first)
        self._course = self._follow()

    def go_on(self) -> bool:
        """Train up to the next evaluation; whether that was the last."""
        return next(self._course, True)

    def _follow(self) -> Iterator[bool]:
        recipe, rank, began = self.recipe, self.engine.rank, time.monotonic()
        coordinates = recipe.policy.coordinates
        with closing(chunks(f"{recipe.seed}/{rank}", self.chunk, coordinates, recipe.chunk)) as stream:
            for number, pixels, drawn in stream:
                self.chunk = number + 1
                rng = random.Random(f"{recipe.seed}/{rank}/{number}/questions")
                order = rng.sample(range(len(drawn)), len(drawn))
                while order:
                    rows = self._screens() // self.engine.size
                    chosen, order = order[:rows], order[rows:]
                    self._step(pixels[chosen], [drawn[row] for row in chosen], rng)
                    ended = self.step >= recipe.steps or self._late(began)
                    if self.step % recipe.report_every == 0:
                        self.report.write(self.step, self.tally.success)
                    if self.step % recipe.evaluate_every == 0 or ended:
                        self._keep()
                        if ended:
                            return
                        yield False

    def _screens(self) -> int:
        """Of the next step, over all processes."""
        if self.recipe.copying:
            return COPYING_BATCH
        return SEEING_BATCH if self.step < self.recipe.seeing else BATCH

    def _late(self, began: float) -> bool:
        """Whether the time is over for any process: they must stop at the same step."""
        late = time.monotonic() - began > self.recipe.seconds
        return math.isfinite(self.recipe.seconds) and added([float(late)], self.engine)[0] > 0

    def _step(self, pixels: np.ndarray, drawn: Sequence[scenes.Scene], rng: random.Random) -> None:
        chosen = [_choose(scene.questions, rng) if self.step >= self.recipe.seeing else [] for scene in drawn]
        if self.recipe.copying:
            chosen = [[*some, *self._typings(rng)] for some in chosen]
        packed = self.collator.pack(pixels, chosen)
        parts: list[QuestionBatch | CopyBatch] = [packed]
        if self.recipe.copying:
            texts = [copying.draw(rng) for _ in range(TEXTS // self.engine.size)]
            parts.append(copying.pack(self.encoder, texts))
        shown = None if self.recipe.copying else self._shown(drawn)
        found: list[Losses] = []

        def loss_of(batch: QuestionBatch | CopyBatch) -> tuple[Tensor, list[float]]:
            lost = self.engine.forward(batch, shown, self.step < self.recipe.seeing)
            found.append(lost)
            if isinstance(batch, CopyBatch):
                return lost.total, [0.0] * (2 * len(KINDS))
            return lost.total, self._counts(batch, lost.predicted, drawn, chosen).flatten().tolist()

        share = 1 / self.engine.size  # of the batch: each process has screens of its own, as many as any other
        rate = RATE * self._schedule()
        (_, *counts), _ = gradient_step(
            self.engine, [(part, share) for part in parts], loss_of, rate, what=f"step {self.step}", where="pretraining"
        )
        for kind, hits, asked in zip(KINDS, counts[::2], counts[1::2], strict=True):
            self.tally.note(kind, round(hits), round(asked))
        since = self.step - (self.recipe.seeing if self.step >= self.recipe.seeing else 0)  # forgets what came before
        decay = min(DECAY, (since + 1) / (since + 10))
        with torch.no_grad(), self.gathered():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 - decay)
        self.step += 1
        self.report.note(found, len(drawn), sum(len(some) for some in chosen))

    def _typings(self, rng: random.Random) -> list[scenes.Question]:
        return [typing(copying.name(rng), rng, self.recipe.policy.coordinates) for _ in range(TYPINGS)]

    def _shown(self, drawn: Sequence[scenes.Scene]) -> Shown:
        things, texts = [scene.shown for scene in drawn], [scene.texts for scene in drawn]
        return Shown(
            name_cells(self.encoder, things, SCREEN, CELLS),
            place_cells(things, SCREEN, CELLS),
            spell_patches(texts, SCREEN, 2 * CELLS, 2),
            read_cells(texts, SCREEN, CELLS),
        )

    def _schedule(self) -> float:
        """Warm up, stay, and cool down at the end."""
        others = max(1, self.recipe.steps - self.recipe.seeing)  # a run that only sees does not cool down
        left = (self.recipe.steps - self.step) / (COOLDOWN * others)
        return min(1.0, (self.step + 1) / WARMUP, max(0.05, left))

    def _counts(
        self, packed: QuestionBatch, predicted: torch.Tensor, drawn: Sequence[scenes.Scene], chosen: list[list]
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

    def _keep(self) -> None:
        """Save, and evaluate the average; the first process does it for all."""
        recipe = self.recipe
        self.save(recipe.out / "state.pt", {"key": _KEY})
        if self.first:
            save_checkpoint(self.average, self.encoder, recipe.out / "base", dtype=torch.bfloat16)
            found = evaluate(self.average, self.encoder, recipe.policy, seed=recipe.seed, scenes_a_kind=recipe.held_out)
            self.report.evaluation(self.step, found)


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
