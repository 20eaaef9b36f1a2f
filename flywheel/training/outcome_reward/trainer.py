"""Train an outcome reward model (ORM): SFT on right verdicts, single-turn RL on sampled verdicts, calibration."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from flywheel.config import SupervisedSettings
from flywheel.config.workspace import Workspace
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import EncodedSequence, Encoder
from flywheel.policy.model import load_model
from flywheel.rewards.outcome import (
    ANSWERS,
    Calibration,
    DomainCalibration,
    VerdictInput,
    build_verdict_context,
    list_versions,
    verdict_tokens,
)
from flywheel.training.data import Example, ShuffledDataset
from flywheel.training.distributed import engine as engines
from flywheel.training.modeling.policy_forward import MicroBatch, PolicyForward
from flywheel.training.outcome_reward.labels import LabelledTrajectory, draw_balanced, load_labelled, share_of
from flywheel.training.rl.algorithms.grpo import group_relative_advantages
from flywheel.training.rl.losses import policy_loss
from flywheel.training.sft import OnMetric, SupervisedTrainer, train_supervised
from flywheel.utils.errors import BadInput
from flywheel.utils.files import disk_full_errors, write_text

VERDICTS = 8  # sampled for each trajectory
FALSE_YES = -1.0  # reward of yes where it was not done; 1 for a right verdict, 0 for no where it was done
LEAST = 20  # labels of a kind: with fewer no ORM is trained, and no domain calibrated
CALIBRATED = 0.25  # share of the tasks
READS = VerdictInput()
SFT = SupervisedSettings(lr=3e-4, batch=32, save_every=1_000_000)  # no run is resumed
RL = SFT.model_copy(update={"lr": 3e-5})


@dataclass(frozen=True)
class OrmRecipe:
    """Hold how an outcome reward model is trained.

    begin: checkpoint to start from. reads: what of a trajectory it reads. sft_steps, rl_steps: gradient steps of each
    stage. sft, rl: their optimiser. seed: of the batches.
    """

    begin: Path
    reads: VerdictInput = READS
    sft_steps: int = 300
    rl_steps: int = 30
    sft: SupervisedSettings = SFT
    rl: SupervisedSettings = RL
    seed: int = 0


def train_orm(
    ws: Workspace,
    iterations: tuple[int, int],
    place: Path,
    recipe: OrmRecipe,
    on_metric: OnMetric = lambda metric: None,
) -> Path:
    """Train an outcome reward model on a workspace's labelled trajectories; return the folder that it is written to.

    iterations: first and last. place: path without the version: the next free folder `place@N`, N from 1, is written.
    recipe: how it is trained. on_metric: as of `train_supervised`, for each stage, whose name (sft, rl) it gets as
    `stage`. Three quarters of the tasks train, the rest calibrate. Raises BadInput for labels of one class or too few
    of one, or where no domain has enough to be calibrated; DiskFull; otherwise as `load_labelled`, `verdict_tokens`,
    `build_verdict_context` and `train_supervised`.
    """
    with TemporaryDirectory(prefix="flywheel-orm-") as scratch:
        work = Path(scratch)
        labelled, images = load_labelled(ws, iterations, work)
        parts = [one for one in labelled if share_of(one.task_id) >= CALIBRATED]
        rest = [one for one in labelled if share_of(one.task_id) < CALIBRATED]
        check_labels(parts, f"iterations {iterations[0]} to {iterations[1]} of {ws.root}")
        countable = {name: _counts(rest, name) for name in sorted({one.domain for one in rest})}
        if not any(min(kinds) >= LEAST for kinds in countable.values()):
            what = f"no domain has {LEAST} labels of each kind on tasks that are kept for calibration: {countable}"
            raise BadInput(what, where=ws.root, fix="take more iterations")
        model = work / "model"
        train_verdicts(parts, images, recipe, model, on_metric)
        domains = calibrate(model, recipe.reads, rest, images)
        name = f"{place.name}@{(list_versions(place) or [0])[-1] + 1}"
        made = Calibration(name, checkpoint_digest(model), recipe.reads, domains)
        made.write(model)
        write_text(model / "README.md", write_card(made, parts, iterations, recipe))
        out = place.with_name(name)
        with disk_full_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(model, out)
    return out


def check_labels(labelled: Sequence[LabelledTrajectory], where: str) -> None:
    """Raise BadInput unless at least `LEAST` of `labelled` did their task, and as many did not.

    where: they are from, for the error.
    """
    done, not_done = _counts(labelled)
    if not done or not not_done:
        kind = "did" if done else "did not do" if not_done else "neither did nor did not do"
        what = f"the labels are of one class: all {len(labelled)} trajectories {kind} their task"
        raise BadInput(what, where=where, fix="take iterations with both")
    if min(done, not_done) < LEAST:
        what = f"too few labels: {done} trajectories did their task, {not_done} did not; {LEAST} of each are needed"
        raise BadInput(what, where=where, fix="take more iterations")


def _counts(labelled: Sequence[LabelledTrajectory], domain: str = "") -> tuple[int, int]:
    """Count the trajectories that did their task, and those that did not. domain: "": all."""
    kinds = Counter(one.truth for one in labelled if domain in ("", one.domain))
    return kinds[True], kinds[False]


def train_verdicts(
    labelled: Sequence[LabelledTrajectory],
    images: Mapping[str, bytes],
    recipe: OrmRecipe,
    folder: Path,
    on_metric: OnMetric = lambda metric: None,
) -> None:
    """Train a checkpoint by `recipe` to give the right verdict on each of `labelled`, and write it to `folder`.

    images: PNG by sha256. folder: replaced where it exists; with no steps in the recipe nothing is written. on_metric:
    as of `train_supervised`, with the `stage` (sft or rl). Raises as `verdict_tokens`, `train_supervised` and, for a
    prompt, `build_verdict_context`.
    """
    encoder = Encoder.from_folder(recipe.begin)
    verdict_tokens(encoder)
    right = {truth: tuple(encoder.encode_text(ANSWERS[not truth])) for truth in (True, False)}
    steps = {"sft": (recipe.sft_steps, recipe.sft), "rl": (recipe.rl_steps, recipe.rl)}
    begin = recipe.begin
    for stage, (count, settings) in steps.items():
        if not count:
            continue
        drawn = draw_balanced(labelled, count * settings.batch, recipe.seed + (stage == "rl"))
        examples = [
            Example(
                partial(encode_verdict_prompt, encoder, images, recipe.reads, one),
                right[one.truth],
                None,
                one.trajectory_id,
                len(one.steps),
                one.domain,
            )
            for one in drawn
        ]
        train_supervised(
            begin,
            folder,
            ShuffledDataset(examples, settings.batch, recipe.seed),
            settings=settings,
            state_folder=folder.with_name(f"{folder.name}-{stage}"),
            on_metric=lambda metric, stage=stage: on_metric({**metric, "stage": stage}),
            trainer=VerdictTrainer if stage == "rl" else SupervisedTrainer,
        )
        begin = folder


def encode_verdict_prompt(
    encoder: Encoder, images: Mapping[str, bytes], reads: VerdictInput, one: LabelledTrajectory
) -> EncodedSequence:
    """Encode the prompt that asks an outcome reward model about the trajectory `one`.

    encoder: of the ORM. images: PNG by sha256. reads: what of the trajectory it reads. Raises as
    `build_verdict_context` and `Encoder.encode`.
    """
    given = (one.instruction, one.steps, images, encoder.count, reads, one.final_image_sha256)
    return encoder.encode(build_verdict_context(*given))


def compute_yes_probabilities(
    folder: Path, reads: VerdictInput, labelled: Sequence[LabelledTrajectory], images: Mapping[str, bytes]
) -> np.ndarray:
    """Return the probability of yes that an outcome reward model gives each of `labelled`, float64 [labelled].

    It is what `VerdictReader` gives; what samples of a task share is read once. folder: of the ORM. reads: what it
    reads. images: PNG by sha256. Raises as `build_verdict_context`, `load_model`.
    """
    encoder, forward = (
        Encoder.from_folder(folder),
        PolicyForward(load_model(folder, device=SFT.device), keeps_screens=True),
    )
    verdicts, found = verdict_tokens(encoder), np.zeros(len(labelled))
    order = sorted(range(len(labelled)), key=lambda i: (labelled[i].task_id, i))
    for first in range(0, len(order), SFT.batch):
        some = order[first : first + SFT.batch]
        prompts = [encode_verdict_prompt(encoder, images, reads, labelled[i]) for i in some]
        _, logprobs = read_verdicts(forward, prompts, verdicts, SFT)
        found[some] = 1 / (1 + np.exp(logprobs[:, 1] - logprobs[:, 0]))
    return found


def read_verdicts(
    forward: PolicyForward,
    prompts: Sequence[EncodedSequence],
    verdicts: tuple[int, int],
    settings: SupervisedSettings,
    run: Callable[..., tuple[Tensor, ...]] | None = None,
) -> tuple[list[MicroBatch], np.ndarray]:
    """Read, without gradient, how probable the verdicts yes and no are after each prompt.

    verdicts: their tokens. settings: of the micro-batches. run: makes a pass; None: `forward`. Returns the
    micro-batches, where sequence 2 i is prompt i with yes and 2 i + 1 with no, and log-probabilities [prompts, 2].
    """
    items = [forward.encode_example(prompt, (token,)) for prompt in prompts for token in verdicts]
    parts, found = forward.split_into_micro_batches(items, settings), np.zeros(len(items))
    with torch.no_grad():
        for part in parts:
            found[list(part.members)] = (run or forward)(part, 1.0)[2].cpu().numpy()
    return parts, found.reshape(-1, 2)


def calibrate(
    folder: Path, reads: VerdictInput, labelled: Sequence[LabelledTrajectory], images: Mapping[str, bytes]
) -> dict[str, DomainCalibration]:
    """Calibrate an outcome reward model, by domain, on trajectories of tasks that it was not trained on.

    Returns a `DomainCalibration` by domain: the probabilities of yes of those that did their task, and of those that
    did not; a domain with fewer than `LEAST` of a kind is left out. Arguments and errors as of
    `compute_yes_probabilities`.
    """
    said = compute_yes_probabilities(folder, reads, labelled, images)
    found = {}
    for domain in sorted({one.domain for one in labelled}):
        kinds = [
            tuple(
                sorted(
                    round(float(p), 6)
                    for p, one in zip(said, labelled, strict=True)
                    if one.domain == domain and one.truth == truth
                )
            )
            for truth in (True, False)
        ]
        if min(map(len, kinds)) >= LEAST:
            found[domain] = DomainCalibration(*kinds)
    return found


class VerdictTrainer(SupervisedTrainer):
    """Train verdicts by RL, where `SupervisedTrainer` imitates the right ones.

    A step samples `VERDICTS` verdicts of each trajectory of the batch by the weights in training. Their rewards are
    compared with one another (leave-one-out), so that trajectories whose verdict is certain teach nothing.
    """

    def step(self, number: int, rate: float) -> tuple[float, float]:
        """Take a gradient step on batch `number` at learning rate `rate`; return its loss and a probability.

        That is the mean probability of the right verdict among the two. Raises as `SupervisedTrainer.step`.
        """
        batch, verdicts = self.dataset.get_batch(number), verdict_tokens(self.encoder)
        right = np.array([example.response[0] == verdicts[0] for example in batch])
        # What is sampled depends on both verdicts of a trajectory, which may lie in different packs.
        parts, read = read_verdicts(
            self.reader, [example.context for example in batch], verdicts, self.settings, self.engine.forward
        )
        weights = sample_advantages(read, right, np.random.default_rng(number))

        def loss_of(part: MicroBatch) -> tuple[Tensor, tuple[float]]:
            _, _, logprobs = self.engine.forward(part, 1.0)
            chosen = torch.from_numpy(weights.reshape(-1)[list(part.members)]).to(logprobs)
            every = torch.ones_like(logprobs, dtype=torch.bool)
            loss, _ = policy_loss(
                logprobs, logprobs.detach(), chosen, every, eps_low=0.2, eps_high=0.28, tokens=len(batch)
            )
            return loss, (0.0,)

        shared = engines.pad_microbatches_across_ranks(parts, self.engine)
        (loss, _), _ = engines.take_gradient_step(
            self.engine, shared, loss_of, rate, what=f"step {number + 1}", where=self.name
        )
        yes = 1 / (1 + np.exp(read[:, 1] - read[:, 0]))
        return loss, float(np.where(right, yes, 1 - yes).mean())


def sample_advantages(logprobs: np.ndarray, truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sample `VERDICTS` verdicts of each trajectory; return the mean advantage that falls to yes and to no.

    logprobs: [trajectories, 2], of yes and no. truth: bool [trajectories]. rng: draws them. Returns float64
    [trajectories, 2].
    """
    yes = 1 / (1 + np.exp(logprobs[:, 1] - logprobs[:, 0]))
    said = rng.random((len(yes), VERDICTS)) < yes[:, None]
    rewards = np.where(said == truth[:, None], 1.0, np.where(said, FALSE_YES, 0.0))
    groups = np.repeat(np.arange(len(yes)), VERDICTS).tolist()
    advantages = group_relative_advantages(rewards.ravel().tolist(), groups, "none").reshape(said.shape)
    return np.stack([(advantages * said).mean(1), (advantages * ~said).mean(1)], axis=1)


def write_card(
    made: Calibration, trained: Sequence[LabelledTrajectory], iterations: tuple[int, int], recipe: OrmRecipe
) -> str:
    """Return the model card of an outcome reward model as Markdown: what it is, was trained and calibrated on.

    made: its calibration. trained: what it was trained on, of `iterations`, first and last, by `recipe`. Raises
    ModelError as `checkpoint_digest`.
    """
    (done, not_done), begin = _counts(trained), "/".join(recipe.begin.absolute().parts[-2:])
    lines = [
        f"# {made.name}",
        "An outcome reward model: instruction, text of the steps and newest screens in, yes or no out.",
        "",
        f"- Weights {made.weights}, from {begin} ({checkpoint_digest(recipe.begin)}).",
        f"- Reads {json.dumps(asdict(made.reads))}.",
        f"- Trained on iterations {iterations[0]} to {iterations[1]}: {done} trajectories that did their task, "
        f"{not_done} that did not, {sum(one.claims_success for one in trained if not one.truth)} of them claiming it; "
        f"{recipe.sft_steps} steps of SFT, {recipe.rl_steps} of RL.",
        "- Calibrated on other tasks. In a domain that is not listed it abstains.",
        "",
        "| domain | done | not done | to review, of these, with at most 5% wrong of each kind |",
        "|---|---|---|---|",
    ]
    for name, one in made.domains.items():
        low, high = one.bands(0.05, 0.05)
        every = np.array(one.done + one.not_done)
        review = ((every >= low) & (every <= high)).mean()
        lines.append(f"| {name} | {len(one.done)} | {len(one.not_done)} | {review:.2f} |")
    return "\n".join(lines) + "\n"
