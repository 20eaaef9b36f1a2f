"""Training samples from trajectories and general data: one sample a step, its prompt built as the rollout built it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from flywheel.agent.history_summary import Summarizer
from flywheel.agent.prompt import build_context
from flywheel.errors import DataError
from flywheel.policy.encoding import Encoded, Encoder
from flywheel.rollout.history import History
from flywheel.settings import Policy as PolicySettings
from flywheel.settings import Supervised
from flywheel.trajectory import Step, Trajectory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sample:
    """One step to train on. prompt: encoded, or what encodes it. response: token ids, end token included where it was
    sampled.

    logprobs: as sampled; None for human steps and general data. trajectory_id, step: where it comes from (general
    data: sample_id and 0). weight: its share of a mix, beside the others of its source.

    For RL, sampled_logprobs: at the temperature it was sampled at, where the policy said them. version: which step of
    the trainer the weights came from that sampled it; None: the newest.
    """

    prompt: Encoded | Callable[[], Encoded]
    response: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    trajectory_id: str
    step: int
    domain: str
    weight: float = 1.0
    sampled_logprobs: tuple[float, ...] = ()
    version: int | None = None

    @property
    def context(self) -> Encoded:
        """The prompt, encoded. Kept by nobody: stores grow with each iteration, and pixels are a hundred times the size
        of the PNG."""
        return self.prompt() if callable(self.prompt) else self.prompt


def agent_samples(
    trajectories: Iterable[Trajectory],
    steps: Iterable[Step],
    images: Mapping[str, bytes],
    encoder: Encoder,
    settings: PolicySettings,
    *,
    parse_errors: bool = False,
    weights: Mapping[str, float] | None = None,
    summarizer: Summarizer | None = None,
) -> list[Sample]:
    """Samples of the trajectories' steps, sorted by (trajectory_id, step).

    images: PNG by sha256. parse_errors: also steps whose text held no action, and a person's slips; RL needs them,
    imitation must not learn them. weights: by trajectory_id, 1 where absent. summarizer: as the rollout's, for steps
    without a stored digest (a human's); rules where there is none. A step without token ids (a human's) is encoded from
    raw_text.
    Raises DataError for a step without its screen, or without any observation.
    """
    steps_of = defaultdict(list)
    for step in steps:
        steps_of[step.trajectory_id].append(step)
    samples = []
    for trajectory in sorted(trajectories, key=lambda one: one.trajectory_id):
        name = trajectory.trajectory_id
        history = History(trajectory.instruction, images, settings, count=encoder.count, summarizer=summarizer)
        for step in sorted(steps_of[name], key=lambda one: one.step):
            if parse_errors or not (step.parse_error or step.slip):
                where = f"trajectory {name}, step {step.step}"
                read_alone = step.image_sha256 is None and step.observation is not None
                screen = None if read_alone else _screen(images, step.image_sha256, where)
                context = history.context(screen, step.memory, observation=step.observation)
                response = step.token_ids or tuple(encoder.encode_text(step.raw_text))
                samples.append(
                    Sample(
                        partial(encoder.encode, context),
                        response,
                        step.logprobs if step.token_ids else None,
                        name,
                        step.step,
                        trajectory.domain,
                        (weights or {}).get(name, 1.0),
                        step.sampled_logprobs,
                        step.version,
                    )
                )
            history.add(step)
    return samples


def general_samples(
    rows: Iterable[Mapping[str, Any]], images: Mapping[str, bytes], encoder: Encoder, settings: PolicySettings
) -> list[Sample]:
    """Samples of the table `general`, sorted by sample_id: a screen, a question and the answer's text."""
    samples = []
    for row in sorted(rows, key=lambda row: row["sample_id"]):
        screen = _screen(images, row["image_sha256"], f"general sample {row['sample_id']}")
        context = build_context(row["instruction"], (), screen, settings, encoder.count)
        response = tuple(encoder.encode_text(row["response"]))
        samples.append(Sample(partial(encoder.encode, context), response, None, row["sample_id"], 0, "general"))
    return samples


def joined(own: Sequence[Sample], people: Sequence[Sample], share: float) -> list[Sample]:
    """Both, weighed so that `share`, below 1, of what a mix draws of them is people's; one alone where the other is
    empty."""
    if own and people:
        weight = share / (1 - share) * sum(one.weight for one in own) / sum(one.weight for one in people)
        people = [replace(one, weight=one.weight * weight) for one in people]
    return [*own, *people]


def mix(agent: Sequence[Sample], general: Sequence[Sample], settings: Supervised, seed: int) -> list[Sample]:
    """settings.samples samples, the share settings.agent_fraction of them from `agent`, the rest general, shuffled.

    Within its source a sample comes as often as its weight asks, rounded up or down. Few agent samples are repeated
    settings.max_repeats times on average, no more; general data take the rest. Where one source is empty the other
    fills the mix (an early iteration has no agent data), and the log says so.
    """
    n = settings.samples
    of_agent = min(round(n * settings.agent_fraction), settings.max_repeats * len(agent))
    if not agent or not general:
        log.warning("there are no %s samples: the other source fills the mix", "general" if agent else "agent")
        of_agent = n if agent else 0
    rng = np.random.default_rng(seed)
    chosen = [*_drawn(agent, of_agent, rng), *_drawn(general, n - of_agent, rng)]
    return [chosen[i] for i in rng.permutation(len(chosen))]


def _drawn(source: Sequence[Sample], n: int, rng: np.random.Generator) -> list[Sample]:
    """n samples by systematic sampling: each comes floor or ceil of n weight / sum of weights times."""
    if not source or not n:
        return []
    order = rng.permutation(len(source))
    ends = np.cumsum([source[i].weight for i in order])
    points = (np.arange(n) + rng.random()) * (ends[-1] / n)
    return [source[order[i]] for i in np.searchsorted(ends, points, side="right").clip(max=len(source) - 1)]


def _screen(images: Mapping[str, bytes], sha256: str, where: str) -> bytes:
    try:
        return images[sha256]
    except KeyError:
        raise DataError(
            f"the screen {str(sha256)[:12]} is missing", where=where, fix="fetch it with `dvc checkout`"
        ) from None
