"""Pretrain the base: a tiny model learns from synthetic screens to see, to read and to point.

The recipe, found by measurement: initial weights with a large deviation (`policy.model`), points in two digits,
auxiliary losses in addition to the answers' loss (`objectives`), a dense description of each screen among its
questions, all questions of a screen in one sequence (`batches`), AdamW at 1e-3 with warmup and cooldown, and an average
of the weights over time as the result. A base that sees learns to copy from texts in a second run.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import multiprocessing
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flywheel import config
from flywheel.agent.actions import Point
from flywheel.agent.parsing.parser import parse_response
from flywheel.agent.prompt import build_context
from flywheel.envs.browser.driver import chromium
from flywheel.envs.screens import layouts, vocabulary
from flywheel.envs.screens.questions import ask_typing
from flywheel.envs.tasks.grounding import SceneRenderer, encode_png
from flywheel.policy import checkpoint
from flywheel.policy.encoding import Encoder
from flywheel.policy.inference.engine import generate_responses
from flywheel.policy.model import SCREEN_SIDE, load_model, make_tiny_model, save_checkpoint, train_tokenizer
from flywheel.policy.protocol import SamplingParams
from flywheel.training.distributed.engine import TrainState, open_engine, sum_across_ranks, take_gradient_step
from flywheel.training.distributed.worker_group import WorkerGroup
from flywheel.training.pretrain import batches, objectives
from flywheel.utils.confidence_intervals import wilson_interval
from flywheel.utils.errors import BadInput, errors_of_place
from flywheel.utils.processes import exit_with_parent

ANSWER_BATCH = 32  # answers that are sampled in one batch
DESCRIPTION_SKILLS = ("describe", "board")  # their answers are too long for one step


@dataclass(frozen=True)
class JudgedAnswer:
    """Hold a question, the model's answer `text`, and whether it is right. pixels: uint8 [side, side, 3]."""

    scene: layouts.Scene
    pixels: np.ndarray
    question: layouts.SceneQuestion
    text: str
    right: bool


def is_correct_answer(question: layouts.SceneQuestion, text: str, coordinates: int) -> bool:
    """Tell whether an answer is right: the right kind of action, with its points in the question's boxes.

    For a question without boxes, and for a description, it is right if it is the same text. Thoughts are ignored. text:
    the answer. coordinates: `policy.coordinates`, of its points.
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
    """Answer questions about scenes greedily, and judge the answers.

    model: put in evaluation mode meanwhile. encoder: the model's. policy: block `policy`, the form of prompts and
    answers. asked: scenes, which Chromium draws, each with its questions. Returns the answers in that order. Raises
    BadInput where there is no Chromium, EnvError where it does not start or fails, PolicyError where the model fails.
    """
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
    """Measure success on held-out scenes of all levels: `success_rate` for each skill and each `level <n>`.

    model, encoder, policy: as in `answer_questions`. Raises BadInput, EnvError and PolicyError as that does. seed: of
    the scenes. scenes_a_kind: number of scenes of each kind, with at most three questions each.
    """
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
    """Compute the share of True with its 95% Wilson interval: `value`, `n`, `low`, `high`. hits: one or more."""
    low, high = wilson_interval(sum(hits), len(hits))
    return {"value": round(sum(hits) / len(hits), 3), "n": len(hits), "low": round(low, 3), "high": round(high, 3)}


# Crowded screens teach most at the same cost: every thing on a screen is a target of the image tokens that show it.
LEVEL_MIX = (1, 2, 3, 3, 4, 4)
EXTRA_DRAWS = {"texts": 7, "sheet": 4, "form": 2, "rows": 1, "buttons": 1}  # added to the weight 1 of every kind
ACCURACY_WINDOW = 300  # number of questions over which a success rate is measured


def draw_scene_kinds(count: int, rng: random.Random) -> list[tuple[str, int]]:
    """Draw by `rng` kind and level of each of the next `count` scenes; kinds that teach most come more often.

    Levels need not rise with success: with the pointing loss, attention falls on the right one of several things after
    5,000 screens. Without that loss a small model needs rising levels to learn which thing a word means.
    """
    kinds = [*layouts.SCENE_KINDS, *(kind for kind, times in EXTRA_DRAWS.items() for _ in range(times))]
    return [(rng.choice(kinds), rng.choice(LEVEL_MIX)) for _ in range(count)]


@dataclass
class KindAccuracy:
    """Hold the success rate of each kind of scene, on its newest ACCURACY_WINDOW or more questions."""

    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(layouts.SCENE_KINDS, 0))
    asked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(layouts.SCENE_KINDS, 0))
    success: dict[str, float] = field(default_factory=dict)

    def note(self, kind: str, hits: int, asked: int) -> None:
        """Count `hits` of `asked` questions about scenes of `kind`."""
        self.hits[kind] += hits
        self.asked[kind] += asked
        if self.asked[kind] >= ACCURACY_WINDOW:
            self.success[kind] = self.hits[kind] / self.asked[kind]
            self.hits[kind] = self.asked[kind] = 0


def stream_scene_chunks(
    name: str, first: int, coordinates: int, size: int
) -> Iterator[tuple[int, np.ndarray, list[layouts.Scene]]]:
    """Yield number, pixels (uint8 [size, side, side, 3]) and scenes of each chunk; a subprocess draws two ahead.

    name: seed, with the chunk's number; equal names, numbers, sizes and coordinates give equal scenes. first: number of
    the first chunk. size: scenes in a chunk. coordinates: `policy.coordinates`. Raises BadInput where there is no
    Chromium, EnvError where it does not start or fails, BrokenProcessPool where the subprocess is killed.
    """
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=exit_with_parent)
    try:
        waiting: deque[Future[Any]] = deque()
        for number in range(first, 2**31):
            while len(waiting) < 2:
                waiting.append(pool.submit(_render_chunk, size, f"{name}/{number + len(waiting)}", coordinates))
            pixels, drawn = waiting.popleft().result()
            yield number, pixels, drawn
    finally:
        # Waits for a drawing that may be running: else the subprocess and the exit of this process can deadlock.
        pool.shutdown(wait=True, cancel_futures=True)


@cache
def _open_renderer() -> SceneRenderer:
    """Open the renderer, with one browser for all chunks of this subprocess."""
    return SceneRenderer(str(chromium.find_chromium(config.SandboxSettings()))).__enter__()


def _render_chunk(count: int, seed: str, coordinates: int) -> tuple[np.ndarray, list[layouts.Scene]]:
    rng = random.Random(seed)
    drawn = [layouts.draw_scene(kind, level, rng, coordinates) for kind, level in draw_scene_kinds(count, rng)]
    return _open_renderer().draw(drawn), drawn


log = logging.getLogger(__name__)


class PretrainLog:
    """Write `log.jsonl`: means since the last line, and evaluations.

    out: folder of the file. speaks: whether this is the first process; others write nothing.
    """

    def __init__(self, out: Path, speaks: bool) -> None:
        self._file, self._speaks = out / "log.jsonl", speaks
        self._began = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        self._last, self._seen, self._asked = time.monotonic(), 0, 0
        self._losses: list[tuple[float, ...]] = []

    def note(self, lost: Sequence[objectives.PretrainLosses], seen: int, asked: int) -> None:
        """Add the losses of a step.

        lost: of the screens, then of the copy texts, if any. seen, asked: numbers of screens and questions.
        """
        aids = {name: aid.item() for part in lost for name, aid in part.aids.items()}
        copies = sum(part.answers.item() for part in lost[1:])
        named = [aids.get(name, 0.0) for name in objectives.AUXILIARY_WEIGHTS]
        self._losses.append((lost[0].answers.item(), *named, lost[0].right, copies))
        self._seen, self._asked = self._seen + seen, self._asked + asked

    def write(self, step: int, success: dict[str, float]) -> None:
        """Write a line of means since the last line, after `step` steps.

        success: by kind of scene, 0 to 1. In the line scenes_s and questions_s are this process's numbers per second.
        """
        now = time.monotonic()
        means = [round(float(mean), 4) for mean in np.mean(self._losses, axis=0)]
        names = ("answers", *objectives.AUXILIARY_WEIGHTS, "right", "copies")
        self._line(
            {
                "step": step,
                **dict(zip(names, means, strict=True)),
                "scenes_s": round(self._seen / (now - self._last), 1),
                "questions_s": round(self._asked / (now - self._last), 1),
                "seconds": round(now - self._began),
                "success": {kind: round(value, 2) for kind, value in success.items()},
            }
        )
        self._clear()

    def evaluation(self, step: int, result: dict[str, Any]) -> None:
        """Write the result of an evaluation after `step` steps."""
        self._line({"step": step, "evaluation": result})
        self._clear()

    def _line(self, record: dict[str, Any]) -> None:
        if not self._speaks:
            return
        line = json.dumps(record)
        log.info("%s", line)
        with self._file.open("a") as file:
            file.write(line + "\n")


CELLS = SCREEN_SIDE // 32  # image tokens along a side of a screen
BATCH = 16  # screens per step, over all processes
QUESTIONS = 4  # most questions about a screen, without reading questions
READINGS = 4  # most reading questions about a screen: their answers are short, and reading is learnt last
RATE = 1e-3
WARMUP = 200  # steps
SEEING_BATCH = 8  # screens per step while the model learns only to see
COPYING_BATCH = 8  # screens per step in a run that teaches copying
TYPINGS = 3  # questions to type a name, for each screen of such a run
TEXTS = 32  # copy texts per step of such a run
COOLDOWN = 0.25  # last share of the steps after those of seeing, in which the rate falls to a twentieth
DECAY = 0.998  # of the moving average of the weights
KINDS = list(layouts.SCENE_KINDS)
OPTIMIZER = config.OptimizerSettings(beta2=0.98)
_KEY = "pretraining 2"  # format of the saved state: a state of another format is not resumed
_LIMIT_S = 6 * 3600  # timeout of the steps between two evaluations, with several processes


@dataclass(frozen=True)
class PretrainRecipe:
    """Hold the settings of one pretraining.

    out: its folder. seed: of weights, scenes and questions. steps: gradient steps in all. seeing: the first steps, in
    which the model learns only to see, without questions. copying: the model also learns to copy from texts, with
    vision tower and word embeddings frozen; for a `start` that sees already. start: checkpoint to begin with; None:
    random weights. seconds: time limit of one call. optimizer: its processes share each batch; the result depends on
    their number as on a seed. chunk: scenes that a process draws at once; the result depends on it too. report_every,
    evaluate_every: in steps. held_out: scenes of each kind in an evaluation. policy: block `policy`, the form of
    prompts and answers.
    """

    out: Path
    seed: int = 7
    steps: int = 12_000
    seeing: int = 7_000
    copying: bool = False
    start: Path | None = None
    seconds: float = math.inf
    optimizer: config.OptimizerSettings = OPTIMIZER
    chunk: int = 256
    report_every: int = 50
    evaluate_every: int = 1000
    held_out: int = 24
    policy: config.PolicySettings = field(default_factory=config.PolicySettings)


def run_pretraining(recipe: PretrainRecipe, *, resume: bool = True) -> Path:
    """Pretrain a base model by `recipe` and return its checkpoint's folder, `out`/base (bfloat16 on disk).

    resume: continue from `out`/state.pt where it exists, whatever recipe began it; False removes it. The checkpoint is
    written at each evaluation and at the end; `out`/log.jsonl gets a line every `report_every` steps and at each
    evaluation. Stops after `steps` steps, or `seconds` of this call; a state with `steps` steps is not trained further.
    Raises BadInput for settings that exclude one another, a number of processes that does not divide the batches, an
    `out` that cannot be made, a state that an earlier version wrote, and where there is no Chromium; ModelError for a
    `start` that is not a model; TrainingError for a loss that is not finite, a state that is damaged or of another
    model, where a training process ends or times out, and where DeepSpeed is set and not installed; EnvError where
    Chromium does not start or fails, BrokenProcessPool (TrainingError with several processes) where the subprocess that
    draws is killed; PolicyError where the model fails in the evaluation; DiskFull.
    """
    size = recipe.optimizer.processes
    if recipe.copying and (recipe.seeing or not recipe.start):
        fix = "add --init-from MODEL --vision-steps 0"
        raise BadInput("only a base that sees learns to copy", where="pretraining", fix=fix)
    if SEEING_BATCH % size:
        what = f"{size} processes do not share {SEEING_BATCH} screens evenly"
        raise BadInput(what, where="pretraining", fix="take 1, 2, 4 or 8")
    if recipe.start:
        checkpoint.check_checkpoint(recipe.start)
    with errors_of_place(recipe.out):
        recipe.out.mkdir(parents=True, exist_ok=True)
    if not resume:
        (recipe.out / "state.pt").unlink(missing_ok=True)
    workers = WorkerGroup(partial(Pretrainer, recipe), size, 1, _LIMIT_S, "--processes")
    try:
        while not workers.call("train_until_evaluation"):
            pass
    finally:
        workers.close()
    return recipe.out / "base"


class _ModelWithHeads(nn.Module):
    """Hold the model, and the auxiliary heads that only training needs."""

    def __init__(self, model: nn.Module, aids: objectives.AuxiliaryHeads, digits: Tensor) -> None:
        super().__init__()
        self.model, self.aids, self._digits = model, aids, digits

    def forward(
        self, packed: batches.QuestionBatch | batches.CopyBatch, shown: objectives.ScreenTargets | None, only_sees: bool
    ) -> objectives.PretrainLosses:
        if isinstance(packed, batches.CopyBatch):
            return objectives.compute_copying_losses(self.model, packed)
        if only_sees and shown:
            return objectives.compute_seeing_losses(self.model, self.aids, packed, shown)
        return objectives.compute_question_losses(self.model, self.aids, packed, shown, self._digits)


class Pretrainer(TrainState):
    """Pretrain in one process. Weights, optimiser, success counts and counters are equal in all processes.

    recipe: of the run. Raises what `run_pretraining` does.
    """

    counters = ("step", "chunk")

    def __init__(self, recipe: PretrainRecipe) -> None:
        self.recipe = recipe
        torch.manual_seed(recipe.seed)
        if recipe.start:
            self.encoder = Encoder.from_folder(recipe.start)
            self.model = load_model(recipe.start)
        else:
            self.encoder = Encoder.new(train_tokenizer(vocabulary.tokenizer_corpus()), SCREEN_SIDE)
            self.model = make_tiny_model(recipe.seed)
        self.average = copy.deepcopy(self.model)
        shape = self.model.config
        aids = objectives.AuxiliaryHeads(shape.text_config.hidden_size, shape.vision_config.hidden_size)
        digits = torch.tensor(self.encoder.tokenizer.convert_tokens_to_ids([str(digit) for digit in range(10)]))
        if recipe.copying:
            for rests in (self.model.base_model.visual, self.model.get_input_embeddings(), aids):
                rests.requires_grad_(False)
        pupil = _ModelWithHeads(self.model, aids, digits)
        self.engine = open_engine(pupil, recipe.optimizer)
        super().__init__({"pupil": pupil, "average": self.average}, {"pupil": self.engine})
        self.tally, self.step, self.chunk = KindAccuracy(), 0, 0
        saved = recipe.out / "state.pt"
        if self.load(saved, _KEY) is None and saved.exists():
            fix = "move it away to begin anew, from its last checkpoint with --start"
            raise BadInput("the state is of an earlier version", where=saved, fix=fix)
        self.collator = batches.QuestionCollator(self.encoder, SCREEN_SIDE)
        objectives.install_attention(self.model)
        self.model.train()
        self.report = PretrainLog(recipe.out, self.first)
        self._course = self._follow()

    def train_until_evaluation(self) -> bool:
        """Train up to the next evaluation; return whether that was the last."""
        return next(self._course, True)

    def _follow(self) -> Iterator[bool]:
        recipe, rank, began = self.recipe, self.engine.rank, time.monotonic()
        if self.step >= recipe.steps:  # finished, but maybe killed before the checkpoint was written
            self._save_base()
            return
        coordinates = recipe.policy.coordinates
        with closing(stream_scene_chunks(f"{recipe.seed}/{rank}", self.chunk, coordinates, recipe.chunk)) as stream:
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
        """Return the number of screens of the next step, over all processes."""
        if self.recipe.copying:
            return COPYING_BATCH
        return SEEING_BATCH if self.step < self.recipe.seeing else BATCH

    def _late(self, began: float) -> bool:
        """Tell whether the time is over in any process: all must stop at the same step."""
        late = time.monotonic() - began > self.recipe.seconds
        return math.isfinite(self.recipe.seconds) and sum_across_ranks([float(late)], self.engine)[0] > 0

    def _step(self, pixels: np.ndarray, drawn: Sequence[layouts.Scene], rng: random.Random) -> None:
        chosen = [_choose_questions(scene.questions, rng) if self.step >= self.recipe.seeing else [] for scene in drawn]
        if self.recipe.copying:
            coordinates = self.recipe.policy.coordinates
            chosen = [
                [*some, *(ask_typing(batches.draw_name(rng), rng, coordinates) for _ in range(TYPINGS))]
                for some in chosen
            ]
        packed = self.collator.pack(pixels, chosen)
        parts: list[batches.QuestionBatch | batches.CopyBatch] = [packed]
        if self.recipe.copying:
            texts = [batches.draw_copy_text(rng) for _ in range(TEXTS // self.engine.size)]
            parts.append(batches.collate_copy_texts(self.encoder, texts))
        shown = None if self.recipe.copying else self._shown(drawn)
        found: list[objectives.PretrainLosses] = []

        def loss_of(batch: batches.QuestionBatch | batches.CopyBatch) -> tuple[Tensor, list[float]]:
            lost = self.engine.forward(batch, shown, self.step < self.recipe.seeing)
            found.append(lost)
            if isinstance(batch, batches.CopyBatch):
                return lost.total, [0.0] * (2 * len(KINDS))
            return lost.total, self._counts(batch, lost.predicted, drawn, chosen).flatten().tolist()

        share = 1 / self.engine.size  # weight of this process's losses: all processes have equally many screens
        rate = RATE * self._schedule()
        (_, *counts), _ = take_gradient_step(
            self.engine, [(part, share) for part in parts], loss_of, rate, what=f"step {self.step}", where="pretraining"
        )
        for kind, hits, asked in zip(KINDS, counts[::2], counts[1::2], strict=True):
            self.tally.note(kind, round(hits), round(asked))
        since = self.step - (self.recipe.seeing if self.step >= self.recipe.seeing else 0)  # restarts after seeing
        decay = min(DECAY, (since + 1) / (since + 10))
        with torch.no_grad(), self.gathered():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 - decay)
        self.step += 1
        self.report.note(found, len(drawn), sum(len(some) for some in chosen))

    def _shown(self, drawn: Sequence[layouts.Scene]) -> objectives.ScreenTargets:
        things, texts = [scene.shown for scene in drawn], [scene.texts for scene in drawn]
        return objectives.ScreenTargets(
            batches.build_naming_targets(self.encoder, things, SCREEN_SIDE, CELLS),
            batches.build_placing_targets(things, SCREEN_SIDE, CELLS),
            batches.build_spelling_targets(texts, SCREEN_SIDE, 2 * CELLS, 2),
            batches.build_reading_targets(texts, SCREEN_SIDE, CELLS),
        )

    def _schedule(self) -> float:
        """Return the factor of the learning rate: warmup, 1, and a cooldown at the end."""
        others = max(1, self.recipe.steps - self.recipe.seeing)  # a run that only sees does not cool down
        left = (self.recipe.steps - self.step) / (COOLDOWN * others)
        return min(1.0, (self.step + 1) / WARMUP, max(0.05, left))

    def _counts(
        self, packed: batches.QuestionBatch, predicted: torch.Tensor, drawn: Sequence[layouts.Scene], chosen: list[list]
    ) -> torch.Tensor:
        """Count right answers and questions of each kind: [kinds, 2]. predicted: [response tokens], the likeliest
        tokens of the training pass (teacher forcing), so that the count costs no further pass."""
        counts = torch.zeros(len(KINDS), 2)
        where = packed.labels[:, 1:] != batches.IGNORED
        row_of, question_of = where.nonzero()[:, 0], packed.question[:, 1:][where]
        for row, scene in enumerate(drawn):
            mine = row_of == row
            tokens, numbers = predicted[mine], question_of[mine]
            for number, question in enumerate(chosen[row]):
                if question.skill not in DESCRIPTION_SKILLS:
                    text = self.encoder.decode(tokens[numbers == number].tolist())
                    hit = is_correct_answer(question, text, self.recipe.policy.coordinates)
                    counts[KINDS.index(scene.kind)] += torch.tensor([float(hit), 1.0])
        return counts

    def _keep(self) -> None:
        """Save the state and the checkpoint, and evaluate the averaged weights in the first process."""
        recipe = self.recipe
        self.save(recipe.out / "state.pt", {"key": _KEY})
        self._save_base()
        if self.first:
            found = evaluate_grounding(
                self.average, self.encoder, recipe.policy, seed=recipe.seed, scenes_a_kind=recipe.held_out
            )
            self.report.evaluation(self.step, found)

    def _save_base(self) -> None:
        if self.first:
            save_checkpoint(self.average, self.encoder, self.recipe.out / "base", dtype=torch.bfloat16)


def _choose_questions(questions: Sequence[layouts.SceneQuestion], rng: random.Random) -> list[layouts.SceneQuestion]:
    """Choose at most QUESTIONS of a screen's questions, with its description half of the time, and at most READINGS
    reading questions."""
    reads = [question for question in questions if question.skill == "read"]
    rest = [question for question in questions if question.skill != "read"]
    # Numbers before words: any letter identifies a word, only all digits a number.
    chosen = sorted(rng.sample(reads, len(reads)), key=lambda question: not question.response.isdigit())[:READINGS]
    first, *others = sorted(rest, key=lambda question: question.skill not in DESCRIPTION_SKILLS)
    described = [] if others and rng.random() < 0.5 else [first]
    return [*described, *rng.sample(others, min(len(others), QUESTIONS - len(described))), *chosen]
