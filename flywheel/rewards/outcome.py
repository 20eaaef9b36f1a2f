"""Ask an outcome reward model (ORM) whether a task was done, and calibrate its answer (UI-TARS-2, section 2.5.2).

An ORM is a checkpoint of the policy's kind, with `calibration.json` beside the weights. It reads the instruction, the
text of all steps and the newest screens, and answers whether the task was done: yes or no.
"""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from flywheel.agent.history import truncate_end
from flywheel.agent.prompt import Context, Image, Message
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import Encoder, collate_sequences
from flywheel.policy.model import load_model
from flywheel.store.schema import Step
from flywheel.utils.errors import BadInput, DataError, ModelError
from flywheel.utils.files import write_json

QUESTION = "Is it done? yes or no"
ANSWERS = ("yes", "no")
CALIBRATION_FILE = "calibration.json"
_FORMAT = 2


@dataclass(frozen=True)
class VerdictInput:
    """Hold what an ORM reads of a trajectory. screens: number of newest ones, 0 or more. final: whether the one after
    the last action is among them, where it is known. words: whether it reads what the agent said and did. max_tokens:
    of the prompt, at most."""

    screens: int = 5
    final: bool = True
    words: bool = True
    max_tokens: int = 1024


def build_verdict_context(
    instruction: str,
    steps: Sequence[Step],
    images: Mapping[str, bytes],
    count: Callable[[Context], int],
    reads: VerdictInput = VerdictInput(),
    final: str | None = None,
) -> Context:
    """Build the prompt that asks an outcome reward model whether a trajectory did its task.

    instruction: the task. steps: of the whole trajectory, in order. images: PNG by sha256 in hex. count: counts the
    tokens of a context (`Encoder.count`). reads: what the model reads, and how many tokens at most. final: sha256 of
    the screen after the last action; None where it is not known. What does not fit is left out: the text of the oldest
    steps, with a line that says of how many, then the oldest screens. Instruction, newest step, newest screen and
    question always stay. Raises BadInput where these do not fit, for no instruction or no steps, and for a screen that
    cannot be used; DataError for a missing screen.
    """
    if not instruction.strip() or not steps:
        raise BadInput("there is no instruction, or no step, to judge", where="outcome reward model")
    # Each screen with its place: that of a step comes before its line, the final one after the last line.
    seen = [(place, step.image_sha256) for place, step in enumerate(steps) if step.image_sha256 is not None]
    seen += [(len(steps), final)] * (reads.final and final is not None)
    for lines, screens in _reductions(len(steps), min(reads.screens, len(seen))):
        newest = dict(seen[len(seen) - screens :])
        context = _render(instruction.strip(), steps, images, lines, newest, reads)
        if count(context) <= reads.max_tokens:
            return context
    what = f"the instruction, the last step and the question take {count(context)} tokens"
    raise BadInput(what, where="outcome reward model", fix=f"train one that reads more than {reads.max_tokens}")


def _reductions(steps: int, screens: int) -> Iterator[tuple[int, int]]:
    """Yield how many steps have text, and how many screens are shown: less and less of both."""
    yield from ((lines, screens) for lines in range(steps, 0, -1))
    yield from ((1, fewer) for fewer in range(screens - 1, min(screens, 1) - 1, -1))


def _render(
    instruction: str,
    steps: Sequence[Step],
    images: Mapping[str, bytes],
    lines: int,
    screens: Mapping[int, str],
    reads: VerdictInput,
) -> Context:
    parts: list[str | Image] = [f"{instruction}\n"]
    if reads.words and lines < len(steps):
        parts.append(f"[{len(steps) - lines} earlier steps left out]\n")
    for place in range(len(steps) + 1):
        if place in screens:
            try:
                parts.append(Image(images[screens[place]]))
            except KeyError:
                at = f"step {steps[place].step}" if place < len(steps) else "after the last step"
                where = f"trajectory {steps[0].trajectory_id}, {at}"
                raise DataError("its screen is missing", where=where, fix="fetch it with `dvc checkout`") from None
        if reads.words and len(steps) - lines <= place < len(steps):
            parts.append(_line(steps[place]))
    return (Message("user", (*_joined(parts), f"{instruction}\n{QUESTION}")),)


def _joined(parts: Sequence[str | Image]) -> Iterator[str | Image]:
    """Join texts that follow one another, as a template may put something between parts."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        yield part
        text = ""
    if text:
        yield text


_STEP_CHARACTERS = 600


def _line(step: Step) -> str:
    said = f"{step.thought or ''} {step.action or f'no action: {step.parse_error}'}".strip()
    result = f" -> {step.tool_result}" if step.tool_result else ""
    return truncate_end(f"{said}{result}", _STEP_CHARACTERS) + "\n"


class VerdictReader:
    """Hold a loaded ORM, and ask it for P(yes) / (P(yes) + P(no)), by the first tokens of yes and no.

    folder: its checkpoint, of which `calibration.json` is not read. reads: what it reads of a trajectory. device: as
    `policy.device`. Raises ModelError as `load_model`, and where the tokeniser begins yes and no alike.
    """

    def __init__(self, folder: Path, reads: VerdictInput, device: str = "cpu") -> None:
        self.reads, self.encoder = reads, Encoder.from_folder(folder)
        self._model = load_model(folder, device=device)
        self._verdicts = verdict_tokens(self.encoder)

    @torch.inference_mode()
    def probabilities(self, contexts: Sequence[Context], batch: int = 16) -> np.ndarray:
        """Return P(yes) of each context, float64 [contexts]. batch: contexts of a pass. Raises as `Encoder.encode`."""
        found = []
        for first in range(0, len(contexts), batch):
            items = [self.encoder.encode(context) for context in contexts[first : first + batch]]
            inputs = {name: one.to(self._model.device) for name, one in collate_sequences(items, "left").items()}
            logits = self._model(**inputs, logits_to_keep=1, use_cache=False).logits[:, -1, list(self._verdicts)]
            found.append(logits.double().softmax(-1)[:, 0].cpu().numpy())
        return np.concatenate(found) if found else np.zeros(0)


def verdict_tokens(encoder: Encoder) -> tuple[int, int]:
    """Return the token ids by which an outcome reward model answers: the first of yes, and the first of no.

    encoder: the model's. Raises ModelError where they are equal.
    """
    yes, no = (encoder.encode_text(answer)[0] for answer in ANSWERS)
    if yes == no:
        raise ModelError("its tokeniser begins yes and no alike", fix="train from a checkpoint with another tokeniser")
    return yes, no


@dataclass(frozen=True)
class DomainCalibration:
    """Hold the answers of an ORM, P(yes), on labelled trajectories of one domain whose tasks it was not trained on.

    done, not_done: of trajectories that did their task, and of those that did not; both sorted.
    """

    done: tuple[float, ...]
    not_done: tuple[float, ...]

    @cached_property
    def _line(self) -> tuple[float, float]:
        return fit_platt(
            np.array(self.done + self.not_done), np.arange(len(self.done + self.not_done)) < len(self.done)
        )

    def probability(self, p: float | np.ndarray) -> np.ndarray:
        """Return the calibrated probability that the task was done (Platt 1999), never falling as `p` rises.

        p: the ORM's P(yes), in [0, 1], a number or an array; the result has its shape.
        """
        slope, offset = self._line
        return 1 / (1 + np.exp(-(slope * logit(p) + offset)))

    def bands(self, false_yes: float, false_no: float) -> tuple[float, float]:
        """Return (low, high): below low a task is certainly not done, above high certainly done, between to review.

        Both are bounds of the ORM's P(yes), not of `probability`. Split conformal prediction by class (Vovk 2012): of
        trajectories not done, of tasks like the calibration's, at most the share `false_yes`, in [0, 1), is above high
        on average, and of those done at most `false_no`, in [0, 1), below low, however poor the ORM is. Where there are
        too few labels to say so, high is infinite and low minus infinite.
        """
        worst_no = math.floor(false_yes * (len(self.not_done) + 1))
        worst_yes = math.floor(false_no * (len(self.done) + 1))
        high = self.not_done[-worst_no] if worst_no else math.inf
        low = self.done[worst_yes - 1] if worst_yes else -math.inf
        if high < low:  # both claims hold between them, so nothing is left to review
            low = high = (low + high) / 2
        return low, high


_CLEAR = 1e-6  # nearest that P comes to 0 and 1


def logit(p: float | np.ndarray) -> np.ndarray:
    """Return log(p / (1 - p)), with the probability `p` held between 1e-6 and 1 - 1e-6."""
    held = np.clip(p, _CLEAR, 1 - _CLEAR)
    return np.log(held / (1 - held))


def fit_platt(p: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Fit P(done) = 1 / (1 + exp(-(slope logit(p) + offset))) by Newton's method on Platt's smoothed targets.

    p: [labels], in [0, 1]. truth: bool [labels], both values in it. The slope is not below 0: more certain is never
    less probable. Returns (slope, offset).
    """
    x, positives = logit(p), truth.sum()
    target = np.where(truth, (positives + 1) / (positives + 2), 1 / (len(truth) - positives + 2))
    design, line = np.stack([x, np.ones_like(x)], 1), np.zeros(2)
    for _ in range(100):
        said = 1 / (1 + np.exp(-np.clip(design @ line, -500, 500)))
        curve = design.T @ (design * (said * (1 - said))[:, None]) + 1e-6 * np.eye(2)
        move = np.linalg.solve(curve, design.T @ (target - said))
        line += np.clip(move, -2, 2)
        if np.abs(move).max() < 1e-9:
            break
    return max(float(line[0]), 0.0), float(line[1])


@dataclass(frozen=True)
class Calibration:
    """Hold the content of an ORM's `calibration.json`. name: such as orm@3. weights: digest of the checkpoint that it
    belongs to. reads: what the ORM reads of a trajectory. domains: by name; in others it abstains."""

    name: str
    weights: str
    reads: VerdictInput
    domains: Mapping[str, DomainCalibration]

    def write(self, folder: Path) -> None:
        """Write `calibration.json` to `folder`, beside the weights. Raises DiskFull."""
        write_json(folder / CALIBRATION_FILE, {"format": _FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> Calibration:
        """Read `calibration.json` from an ORM's `folder`.

        Raises BadInput where the folder is not there or is no ORM, and where the file is damaged or belongs to other
        weights; ModelError as `checkpoint_digest`.
        """
        path, again = folder / CALIBRATION_FILE, "train one: `flywheel model train-orm`"
        if not folder.is_dir():
            raise BadInput("there is no such checkpoint", where=folder.absolute(), fix=again)
        if not path.is_file():
            what = f"no outcome reward model: it lacks {CALIBRATION_FILE}"
            raise BadInput(what, where=folder.absolute(), fix=again)
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            if raw.pop("format") != _FORMAT:
                raise ValueError("another format")
            domains = {
                name: DomainCalibration(*(tuple(sorted(map(float, one[kind]))) for kind in ("done", "not_done")))
                for name, one in raw["domains"].items()
            }
            found = cls(**{**raw, "reads": VerdictInput(**raw["reads"]), "domains": domains})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(f"it is damaged: {error!r:.100}", where=path, fix="copy it again, or " + again) from None
        if found.weights != (there := checkpoint_digest(folder)):
            raise BadInput(f"it belongs to weights {found.weights}, not to {there}", where=path, fix=again)
        return found


def find_orm(place: Path) -> Path:
    """Return the folder of an ORM: `place` itself, or else the newest of its versions `place@N`.

    Raises BadInput where there is none.
    """
    if place.is_dir():
        return place
    versions = list_versions(place)
    if not versions:
        fix = "train one: `flywheel model train-orm`"
        raise BadInput("there is no such checkpoint, nor one of its versions", where=place.absolute(), fix=fix)
    return place.with_name(f"{place.name}@{versions[-1]}")


def list_versions(place: Path) -> list[int]:
    """Return the numbers N of a model's versions, the paths `place@N`, in ascending order; [] where there is none.

    place: path without `@N`, relative to the working directory.
    """
    found = (path.name.rpartition("@")[2] for path in place.parent.glob(f"{glob.escape(place.name)}@*"))
    return sorted(int(number) for number in found if number.isdecimal())
