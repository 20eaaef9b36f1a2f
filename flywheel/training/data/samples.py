"""Build one training sample a step, its prompt as the rollout built it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flywheel.agent.history import Summarizer
from flywheel.agent.prompt import Context, build_context
from flywheel.config import PolicySettings
from flywheel.policy.encoding import EncodedSequence, Encoder
from flywheel.rollout.history import PromptHistory
from flywheel.store.trajectory import Step, Trajectory
from flywheel.utils.errors import DataError


@dataclass(frozen=True)
class Sample:
    """One step to train on. prompt: encoded, or what encodes it. response: token ids, end token included where it was
    sampled.

    logprobs: as sampled; None for human steps and general data. trajectory_id, step: where it comes from (general
    data: sample_id and 0).

    For RL, sampled_logprobs: at the temperature it was sampled at, where the policy said them. version: which step of
    the trainer the weights came from that sampled it; None: the newest.
    """

    prompt: EncodedSequence | Callable[[], EncodedSequence]
    response: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    trajectory_id: str
    step: int
    domain: str
    sampled_logprobs: tuple[float, ...] = ()
    version: int | None = None

    @property
    def context(self) -> EncodedSequence:
        """The prompt, encoded. Kept by nobody: pixels are a hundred times the size of the PNG."""
        return self.prompt() if callable(self.prompt) else self.prompt


def build_agent_samples(
    trajectories: Iterable[Trajectory],
    steps: Iterable[Step],
    images: Mapping[str, bytes],
    encoder: Encoder,
    settings: PolicySettings,
    *,
    parse_errors: bool = False,
    summarizer: Summarizer | None = None,
) -> list[Sample]:
    """Samples of the trajectories' steps, sorted by (trajectory_id, step).

    images: PNG by sha256. parse_errors: also steps that are not `imitated`; RL needs them. summarizer: as the
    rollout's, for steps without a stored digest (a human's); rules where there is none. A step without token ids (a
    human's) is encoded from raw_text.
    Raises DataError for a step without its screen, or without any observation.
    """
    steps_of = defaultdict(list)
    for step in steps:
        steps_of[step.trajectory_id].append(step)
    samples = []
    for trajectory in sorted(trajectories, key=lambda one: one.trajectory_id):
        name = trajectory.trajectory_id
        history = PromptHistory(trajectory.instruction, images, settings, count=encoder.count, summarizer=summarizer)
        for step in sorted(steps_of[name], key=lambda one: one.step):
            if parse_errors or is_trainable(step):
                context = _build_context(history, step, images)
                samples.append(build_step_sample(trajectory, step, partial(encoder.encode, context), encoder))
            history.add(step)
    return samples


def build_step_sample(
    trajectory: Trajectory, step: Step, prompt: EncodedSequence | Callable[[], EncodedSequence], encoder: Encoder
) -> Sample:
    """The sample of one step, whose prompt is known."""
    return Sample(
        prompt,
        step.token_ids or tuple(encoder.encode_text(step.raw_text)),
        step.logprobs if step.token_ids else None,
        trajectory.trajectory_id,
        step.step,
        trajectory.domain,
        step.sampled_logprobs,
        step.version,
    )


def encode_step_prompt(
    trajectory: Trajectory,
    steps: Sequence[Step],
    images: Mapping[str, bytes],
    encoder: Encoder,
    settings: PolicySettings,
    summarizer: Summarizer | None = None,
) -> EncodedSequence:
    """The prompt of the last of a trajectory's first steps. The rest is as for `agent_samples`."""
    history = PromptHistory(trajectory.instruction, images, settings, count=encoder.count, summarizer=summarizer)
    for step in steps[:-1]:
        history.add(step)
    return encoder.encode(_build_context(history, steps[-1], images))


def is_trainable(step: Step) -> bool:
    """Whether it is one to learn from: a text that held no action, and a person's slip, stay in the history alone."""
    return not (step.parse_error or step.slip)


def _build_context(history: PromptHistory, step: Step, images: Mapping[str, bytes]) -> Context:
    where = f"trajectory {step.trajectory_id}, step {step.step}"
    read_alone = step.image_sha256 is None and step.observation is not None
    screen = None if read_alone else _get_screen(images, step.image_sha256, where)
    return history.context(screen, step.memory, observation=step.observation)


def build_general_samples(
    rows: Iterable[Mapping[str, Any]], images: Mapping[str, bytes], encoder: Encoder, settings: PolicySettings
) -> list[Sample]:
    """Samples of the table `general`, sorted by sample_id: a screen, a question and the answer's text."""
    return [
        Sample(
            partial(encode_general_prompt, row, images, encoder, settings),
            tuple(encoder.encode_text(row["response"])),
            None,
            row["sample_id"],
            0,
            "general",
        )
        for row in sorted(rows, key=lambda row: row["sample_id"])
    ]


def encode_general_prompt(
    row: Mapping[str, Any], images: Mapping[str, bytes], encoder: Encoder, settings: PolicySettings
) -> EncodedSequence:
    screen = _get_screen(images, row["image_sha256"], f"general sample {row['sample_id']}")
    return encoder.encode(build_context(row["instruction"], (), screen, settings, encoder.count))


def _get_screen(images: Mapping[str, bytes], sha256: str, where: str) -> bytes:
    try:
        return images[sha256]
    except KeyError:
        raise DataError(
            f"the screen {str(sha256)[:12]} is missing", where=where, fix="fetch it with `dvc checkout`"
        ) from None
