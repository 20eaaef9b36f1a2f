"""Build the examples that CT, SFT and RL train on, draw them from the training stores, and serve them in batches.

An `Example` is one step: its prompt, built as in the rollout, and its response. RL builds examples of whole episodes
(`build_agent_examples`). CT and SFT train on a `SupervisedDataset`: `MixtureDataset.draw` counts the steps that an
iteration's manifest names, draws from the counts, and reads only the drawn steps, so memory and time depend on the
number of examples and not on the size of the stores.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flywheel.agent.history import Summarizer
from flywheel.agent.prompt import Context, build_context
from flywheel.config import PolicySettings, Settings, SupervisedSettings
from flywheel.config.workspace import Workspace
from flywheel.policy.client.language_model import open_summarizer
from flywheel.policy.encoding import EncodedSequence, Encoder
from flywheel.rollout.episode import PromptHistory
from flywheel.store import images as store_images
from flywheel.store import partitions
from flywheel.store.images import ImageFile
from flywheel.store.manifest import TrainingManifest
from flywheel.store.partitions import is_sorted
from flywheel.store.schema import TABLES, Step, Trajectory, record_from_row
from flywheel.utils.errors import BadInput, DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Example:
    """Hold one step to train on: its prompt and its response.

    trajectory_id, step: its origin; for general data the sample_id, and 0. domain: of its trajectory, or "general".
    prompt: encoded, or a function that encodes it. response: token ids [response], the end token included where it was
    sampled. logprobs: [response], as sampled, at temperature 1; None for people's steps and general data. For RL,
    sampled_logprobs: the same at the sampling temperature, where the policy reports them; version: number of training
    steps of the weights that sampled it; None: the newest weights.
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
        """Return the encoded prompt.

        It is encoded at each access, as its pixels take a hundred times the memory of the PNG. Raises as
        `Encoder.encode`, DataError where a screen is missing, BadInput where the prompt does not fit.
        """
        return self.prompt() if callable(self.prompt) else self.prompt


def build_agent_examples(
    trajectories: Iterable[Trajectory],
    steps: Iterable[Step],
    images: Mapping[str, bytes],
    encoder: Encoder,
    settings: PolicySettings,
    *,
    parse_errors: bool = False,
    summarizer: Summarizer | None = None,
) -> list[Example]:
    """Build an example of each trainable step of whole trajectories, sorted by (trajectory_id, step).

    Steps before `start_step` only stand in the contexts of later ones. steps: of all trajectories, in any order.
    images: PNG by sha256. encoder: of the model to train. settings: block `policy`. parse_errors: also include steps
    that are not `is_trainable`, which RL needs. summarizer: as in the rollout, for steps without a stored digest (a
    person's); None: by rules. Raises DataError for a step that has neither screen nor observation, or whose screen is
    missing, BadInput as `build_context`, BadInput and PolicyError as `Encoder.count`.
    """
    steps_of = defaultdict(list)
    for step in steps:
        steps_of[step.trajectory_id].append(step)
    samples = []
    for trajectory in sorted(trajectories, key=lambda one: one.trajectory_id):
        name = trajectory.trajectory_id
        history = PromptHistory(trajectory.instruction, images, settings, count=encoder.count, summarizer=summarizer)
        for step in sorted(steps_of[name], key=lambda one: one.step):
            if step.step < (trajectory.start_step or 0):  # repeated, not its own
                history.memory(step.memory)
            elif parse_errors or is_trainable(step):
                context = _build_context(history, step, images)
                samples.append(build_step_example(trajectory, step, partial(encoder.encode, context), encoder))
            history.add(step)
    return samples


def build_step_example(
    trajectory: Trajectory, step: Step, prompt: EncodedSequence | Callable[[], EncodedSequence], encoder: Encoder
) -> Example:
    """Build the example of one `step` of `trajectory`.

    prompt: encoded, or a function that encodes it. encoder: of the model to train. A step without token ids is encoded
    from its raw_text; TypeError where it has none.
    """
    response = step.token_ids or tuple(encoder.encode_text(step.raw_text))
    logprobs = step.logprobs if step.token_ids else None
    return Example(
        prompt,
        response,
        logprobs,
        trajectory.trajectory_id,
        step.step,
        trajectory.domain,
        step.sampled_logprobs,
        step.version,
    )


def is_trainable(step: Step) -> bool:
    """Tell whether CT and SFT may learn from a step: not from a text without an action, nor from a person's slip."""
    return not (step.parse_error or step.misclick)


def _build_context(history: PromptHistory, step: Step, images: Mapping[str, bytes]) -> Context:
    where = f"trajectory {step.trajectory_id}, step {step.step}"
    read_alone = step.image_sha256 is None and step.observation is not None
    screen = None if read_alone else _get_screen(images, step.image_sha256, where)
    return history.context(screen, step.memory, observation=step.observation)


def build_general_examples(
    rows: Iterable[Mapping[str, Any]], images: Mapping[str, bytes], encoder: Encoder, settings: PolicySettings
) -> list[Example]:
    """Build an example of each of `rows` of the table `grounding_examples`, sorted by sample_id.

    A row is a screen, a question and an answer. images: PNG by sha256. encoder: of the model to train. settings: block
    `policy`. Prompts are encoded later, by `Example.context`.
    """
    made = []
    for row in sorted(rows, key=lambda row: row["sample_id"]):
        prompt = partial(_encode_general_prompt, row, images, encoder, settings)
        response = tuple(encoder.encode_text(row["response"]))
        made.append(Example(prompt, response, None, row["sample_id"], 0, "general"))
    return made


def _encode_general_prompt(
    row: Mapping[str, Any], images: Mapping[str, bytes], encoder: Encoder, settings: PolicySettings
) -> EncodedSequence:
    screen = _get_screen(images, row["image_sha256"], f"general sample {row['sample_id']}")
    return encoder.encode(build_context(row["instruction"], (), screen, settings, encoder.count))


def _get_screen(images: Mapping[str, bytes], sha256: str, where: str) -> bytes:
    try:
        return images[sha256]
    except KeyError:
        what = f"the screen {str(sha256)[:12]} is missing"
        raise DataError(what, where=where, fix="fetch it with `dvc checkout`") from None


class SupervisedDataset(Protocol):
    """Hold the batches that `train_supervised` trains on: `len(dataset)` of them, one per gradient step.

    Any class with these three members can be trained on. Each training process gets a pickled copy, so batch i must
    have the same examples in every process and at every call.
    """

    @property
    def fingerprint(self) -> str:
        """Return a digest of all batches' contents: a killed run resumes only with an equal one."""

    def __len__(self) -> int:
        """Return the number of batches."""

    def get_batch(self, index: int) -> Sequence[Example]:
        """Return batch `index`, 0 <= index < len(self); the loss is the mean over all its response tokens."""


@dataclass(frozen=True)
class ShuffledDataset:
    """Hold `examples` in random order, each once, cut into batches (a `SupervisedDataset`).

    The last batch may be smaller than `batch_size`. seed: of the order.
    """

    examples: Sequence[Example]
    batch_size: int
    seed: int

    @property
    def fingerprint(self) -> str:
        """Hash batch size, seed, and origin and response of each example, in 64 hex digits; prompts are not read."""
        sha = hashlib.sha256(f"{self.batch_size}|{self.seed}".encode())
        for example in self.examples:
            sha.update(f"{example.trajectory_id}|{example.step}|{example.response}".encode())
        return sha.hexdigest()

    def __len__(self) -> int:
        return -(-len(self.examples) // self.batch_size)

    def get_batch(self, index: int) -> list[Example]:
        """Return batch `index`, 0 <= index < len(self), of `plan_batches`. Raises IndexError beyond the last."""
        return [self.examples[i] for i in plan_batches(len(self.examples), self.batch_size, self.seed)[index]]


@dataclass(frozen=True)
class MixtureDataset(ShuffledDataset):
    """Hold steps drawn from a training store, mixed with general data (a `SupervisedDataset`).

    drawn: references of `examples`, in the same order. left_out: number of further drawn steps, left out because their
    instruction and screen alone do not fit into the prompt.
    """

    drawn: Sequence[ExampleRef] = field(repr=False)
    left_out: int = 0

    @classmethod
    def draw(
        cls,
        ws: Workspace,
        manifest: TrainingManifest,
        store: str,
        encoder: Encoder,
        settings: Settings,
        training: SupervisedSettings,
        folder: Path,
        *,
        mix_seed: int,
        order_seed: int,
        weights: Mapping[str, float] | None = None,
        demonstrations: float = 0.0,
    ) -> Self:
        """Draw `training.num_examples` examples from the store `ct` or `sft` and from general data, then read them.

        ws: the workspace. manifest: names the files that may be read. encoder: of the model to train. settings: blocks
        `policy` and `language_model` are read. training: block `ct` or `sft`. folder: gets copies of the screens, which
        are read from it as long as the data set is used. mix_seed: decides what is drawn. order_seed: decides the
        batches. weights: weight of a step in the mix, by its trajectory's source; 1 for other sources, None: for all.
        demonstrations: share of demonstrations, drawn from the store `ct`, among the steps of trajectories, 0 <=
        demonstrations < 1. Raises DataError where a drawn file or screen is missing or damaged, BadInput for a
        `language_model.endpoint` that is not an address, BadInput and PolicyError for a screen that cannot be encoded,
        DiskFull.
        """
        agent = load_weighted_steps(ws, manifest, store, weights or {})
        if demonstrations:
            people = load_weighted_steps(ws, manifest, "ct", _DEMONSTRATIONS, other=0.0)
            agent = merge_weighted_steps(agent, people, demonstrations)
        drawn = draw_mixture(agent, load_general_examples(ws, manifest), training, mix_seed)
        found = _load_drawn(ws, manifest, drawn, encoder, settings, folder)
        kept = [one for one in drawn if one in found]
        return cls([found[one] for one in kept], training.batch, order_seed, kept, len(drawn) - len(kept))

    @property
    def trajectory_samples(self) -> Counter[str]:
        """Count the examples of each trajectory, by its id; a step that was drawn twice counts twice."""
        return Counter(one.name for one in self.drawn if not one.general)

    @property
    def n_agent(self) -> int:
        """Count the examples that are steps of trajectories; the others are general data."""
        return sum(not one.general for one in self.drawn)


def plan_batches(count: int, batch: int, seed: int) -> list[list[int]]:
    """Cut a random order of `count` indices, drawn by `seed`, into batches of size `batch`; the last may be smaller.

    Equal arguments give equal batches. Examples are not sorted by length: length depends on the kind of example, and
    batches of one kind each would pull the weights back and forth.
    """
    order = np.random.default_rng(seed).permutation(count).tolist()
    return [order[start : start + batch] for start in range(0, count, batch)]


# Sources of demonstrations: recordings of this workspace, these in other words, imported data sets, solvers'
# corrections. Their steps have equal weight.
_DEMONSTRATIONS = {"recording": 1.0, "augmentation": 1.0, "import": 1.0, "correction": 1.0}


class ExampleRef(NamedTuple):
    """Hold what identifies an example in the stores.

    name: its trajectory_id, or the sample_id of general data. number: its index among the trajectory's trainable steps.
    general: whether it is general data.
    """

    name: str
    number: int
    general: bool


@dataclass(frozen=True)
class WeightedSteps:
    """Hold what examples are drawn from: trajectories with their trainable steps, or general data, and weights.

    Three columns of equal length. names: trajectory_ids, or the sample_ids of general data, each of which counts as one
    step. steps: number of trainable steps. weights: weight of one of these steps in a draw.
    """

    names: Sequence[str]
    steps: np.ndarray
    weights: np.ndarray

    @property
    def total(self) -> int:
        """Return the number of steps."""
        return int(self.steps.sum())

    @property
    def weight(self) -> float:
        """Return the sum of the weights of all steps."""
        return float(self.steps @ self.weights)


def merge_weighted_steps(own: WeightedSteps, people: WeightedSteps, share: float) -> WeightedSteps:
    """Join the sources `own` and `people` so that a draw takes the share `share` of its steps from `people`.

    share: above 0, below 1. If one source has no steps, the other is returned. The weights of a source with steps must
    not all be 0.
    """
    if not own.total or not people.total:
        return own if own.total else people
    weight = share / (1 - share) * own.weight / people.weight
    steps = np.concatenate([own.steps, people.steps])
    return WeightedSteps([*own.names, *people.names], steps, np.concatenate([own.weights, people.weights * weight]))


def draw_mixture(
    agent: WeightedSteps, general: WeightedSteps, settings: SupervisedSettings, seed: int
) -> list[ExampleRef]:
    """Draw the examples of a training from trajectories' steps and general data, in random order.

    They are settings.num_examples: the share settings.agent_fraction from `agent`, the rest from `general`. Within its
    source a step is drawn in proportion to its weight, rounded up or down. If there are few agent steps, each is drawn
    at most settings.max_repeats times on average, and general data fill up the rest. If one source is empty (an early
    iteration has no agent data), the other fills the mix, and a warning is logged; [] if both are. settings: block `ct`
    or `sft`. seed: of the draw.
    """
    n = settings.num_examples
    of_agent = min(round(n * settings.agent_fraction), settings.max_repeats * agent.total)
    if not agent.total or not general.total:
        log.warning("there are no %s samples: the other source fills the mix", "general" if agent.total else "agent")
        of_agent = n if agent.total else 0
    rng = np.random.default_rng(seed)
    chosen = [ExampleRef(*one, False) for one in _draw_systematically(agent, of_agent, rng)]
    chosen += [ExampleRef(*one, True) for one in _draw_systematically(general, n - of_agent, rng)]
    return [chosen[i] for i in rng.permutation(len(chosen))]


def _draw_systematically(pool: WeightedSteps, n: int, rng: np.random.Generator) -> list[tuple[str, int]]:
    """Draw n steps by systematic sampling: a step is drawn n x weight / (sum of weights) times, rounded up or down.

    On a line each step has an interval as long as its weight, with the steps of a trajectory next to one another and
    the trajectories in random order; n points at equal distances choose the steps. Returns (name, step number) pairs.
    """
    if not pool.total or not n:
        return []
    order = rng.permutation(len(pool.names))
    lengths = (pool.steps * pool.weights)[order]
    ends = np.cumsum(lengths)
    points = (np.arange(n) + rng.random()) * (ends[-1] / n)
    places = np.searchsorted(ends, points, side="right").clip(max=np.flatnonzero(lengths)[-1])
    chosen = order[places]
    numbers = (points - (ends - lengths)[places]) // pool.weights[chosen]
    numbers = numbers.astype(int).clip(0, pool.steps[chosen] - 1)
    return [(pool.names[i], number) for i, number in zip(chosen.tolist(), numbers.tolist(), strict=True)]


_FILTER_COLUMNS = ("trajectory_id", "step", "parse_error", "misclick")  # what `is_trainable` needs
# Columns that neither prompts nor examples need. All others are read, so a new column needs no change here.
_UNUSED_COLUMNS = {
    "raw_text",  # `_load_texts` reads it, for people's steps only
    *("author", "x", "y", "x2", "y2", "prompt_tokens", "logprobs", "weight_version"),
    *("reward", "terminated", "truncated", "started_at", "ended_at"),
}
_STEP_COLUMNS = set(TABLES["steps"].names) - _UNUSED_COLUMNS
_TRAJECTORY_COLUMNS = ("trajectory_id", "task_id", "domain", "instruction", "start_step")


def load_weighted_steps(
    ws: Workspace, manifest: TrainingManifest, store: str, weights: Mapping[str, float], other: float = 1.0
) -> WeightedSteps:
    """Count the trainable steps of each trajectory in the store `ct` or `sft`, sorted by trajectory_id.

    manifest: names the files to read. weights: weight of a step, by its trajectory's source; `other` for other sources.
    Trajectories of weight 0 are left out. Reads a few narrow columns, one row group at a time. Raises DataError for a
    damaged or missing file.
    """
    kept = []
    for rows in partitions.scan_columns(ws, store, manifest.paths(ws, store), ("trajectory_id", "source", "weight")):
        sources = rows["source"].to_pylist()
        near = rows["weight"].to_numpy()  # near-duplicates together have the weight of one trajectory
        own = np.array([weights.get(source, other) for source in sources]) * near
        kept.append(rows.select(["trajectory_id"]).append_column("weight", pa.array(own)).filter(pa.array(own > 0)))
    if not kept:
        return WeightedSteps([], np.zeros(0, int), np.zeros(0))
    counted = pa.concat_tables(_count_steps(ws, manifest)).group_by("trajectory_id").aggregate([("steps", "sum")])
    found = pa.concat_tables(kept)
    place = pc.index_in(found["trajectory_id"], counted["trajectory_id"])  # a join takes three times as long
    found = found.append_column("steps", counted["steps_sum"].take(place)).filter(pc.is_valid(place))
    if not is_sorted(found, ("trajectory_id",)):
        found = found.sort_by("trajectory_id")
    return WeightedSteps(found["trajectory_id"].to_pylist(), found["steps"].to_numpy(), found["weight"].to_numpy())


def _count_steps(ws: Workspace, manifest: TrainingManifest) -> list[pa.Table]:
    """Count the trainable steps of each trajectory: one table (trajectory_id, steps) per row group."""
    kind = pa.schema([("trajectory_id", pa.string()), ("steps", pa.int64())])
    found, restored = [kind.empty_table()], _restored_starts(ws, manifest)
    for rows in partitions.scan_columns(ws, "steps", manifest.paths(ws, "steps"), _FILTER_COLUMNS):
        # `is_trainable`, computed on columns.
        broken = pc.not_equal(pc.fill_null(rows["parse_error"], ""), "")
        left_out = pc.or_(broken, pc.fill_null(rows["misclick"], False))
        if restored.num_rows:
            first = restored["start_step"].take(pc.index_in(rows["trajectory_id"], restored["trajectory_id"]))
            left_out = pc.or_(left_out, pc.less(rows["step"], pc.fill_null(first, 0)))
        counts = rows["trajectory_id"].filter(pc.invert(left_out)).value_counts()
        found.append(pa.table([counts.field("values"), counts.field("counts")], schema=kind))
    return found


def _restored_starts(ws: Workspace, manifest: TrainingManifest) -> pa.Table:
    """Return trajectory_id and start_step of the trajectories that begin elsewhere than at their task's beginning."""
    columns = ("trajectory_id", "start_step")
    parts = partitions.scan_columns(ws, "trajectories", manifest.paths(ws, "trajectories"), columns)
    found = [rows.filter(pc.greater(rows["start_step"], 0)) for rows in parts]
    empty = TABLES["trajectories"].empty_table().select(columns)
    return pa.concat_tables([empty, *(rows.select(columns).cast(empty.schema) for rows in found)]).combine_chunks()


def load_general_examples(ws: Workspace, manifest: TrainingManifest) -> WeightedSteps:
    """List the general data that the manifest's own iteration made, sorted by sample_id, with equal weights.

    Raises DataError for a damaged or missing file.
    """
    files = _newest_files(ws, manifest, "grounding_examples")
    parts = partitions.scan_columns(ws, "grounding_examples", files, ("sample_id",))
    names = [name for rows in parts for name in rows["sample_id"].to_pylist()]
    return WeightedSteps(sorted(names), np.ones(len(names), int), np.ones(len(names)))


def _newest_files(ws: Workspace, manifest: TrainingManifest, table: str) -> list[Path]:
    """Return the files of `table` that the stage `synthesize` of the manifest's own iteration wrote."""
    own = (manifest.iteration, "synthesize")
    return [ws.resolve(shard.path) for shard in manifest.shards(table) if (shard.iteration, shard.stage) == own]


def load_examples(
    ws: Workspace,
    manifest: TrainingManifest,
    drawn: Sequence[ExampleRef],
    encoder: Encoder,
    settings: Settings,
    folder: Path,
) -> list[Example]:
    """Read the examples that the references `drawn` name, in that order.

    Rows are kept in memory. Screens are copied to `folder`, and each access to a prompt reads and encodes them, in
    whichever process it happens. A person's step whose instruction and screen alone exceed policy.max_context_tokens is
    left out with a warning: this depends on the model's tokeniser. Arguments and errors as in `MixtureDataset.draw`.
    """
    found = _load_drawn(ws, manifest, drawn, encoder, settings, folder)
    return [found[one] for one in drawn if one in found]


def _load_drawn(
    ws: Workspace,
    manifest: TrainingManifest,
    drawn: Sequence[ExampleRef],
    encoder: Encoder,
    settings: Settings,
    folder: Path,
) -> dict[ExampleRef, Example]:
    general = {one for one in drawn if one.general}
    table, names = "grounding_examples", {one.name for one in general}
    files = _newest_files(ws, manifest, table)
    rows = partitions.find_rows(ws, table, files, "sample_id", names, TABLES[table].names).to_pylist()
    screens = {row["image_sha256"] for row in rows}
    files = _newest_files(ws, manifest, "images")
    images = store_images.copy_images_to_file(ws, files, screens, folder / "general-screens")
    made = build_general_examples(rows, images, encoder, settings.policy)
    found = {ExampleRef(example.trajectory_id, 0, True): example for example in made}
    return found | _load_agent_examples(ws, manifest, set(drawn) - general, encoder, settings, folder / "screens")


def _load_agent_examples(
    ws: Workspace, manifest: TrainingManifest, drawn: set[ExampleRef], encoder: Encoder, settings: Settings, path: Path
) -> dict[ExampleRef, Example]:
    numbers = defaultdict(list)
    for one in drawn:
        numbers[one.name].append(one)
    trajectories = _load_trajectories(ws, manifest, numbers.keys())
    begun: dict[ExampleRef, list[Step]] = {}  # example -> its trajectory's steps, up to its own
    for name, steps in _load_histories(ws, manifest, numbers.keys()).items():
        to_learn = _find_trainable(trajectories[name], steps)
        ends = {one: to_learn[one.number] + 1 for one in numbers[name]}
        prepared = _with_digests(trajectories[name], steps[: max(ends.values())], settings)
        begun |= {one: prepared[:end] for one, end in ends.items()}
    last = [steps[-1] for steps in begun.values()]
    texts = _load_texts(ws, manifest, {(step.trajectory_id, step.step) for step in last if not step.token_ids})
    wanted = {step.image_sha256 for steps in begun.values() for step in steps[-settings.policy.history_n_images :]}
    images = store_images.copy_images_to_file(ws, manifest.paths(ws, "images"), wanted - {None}, path)
    made = {}
    for one, steps in begun.items():
        trajectory, step = trajectories[one.name], steps[-1]
        if not step.token_ids:
            step = replace(step, raw_text=texts[step.trajectory_id, step.step])
            shown = PromptHistory(trajectory.instruction, images, settings.policy, count=encoder.count)
            try:
                _build_context(shown, step, images)
            except BadInput as error:
                log.warning("trajectory %s, step %d is left out: %s", one.name, step.step, error)
                continue
        prompt = partial(_encode_agent_prompt, encoder, images, settings, trajectory, steps)
        made[one] = build_step_example(trajectory, step, prompt, encoder)
    return made


def _find_trainable(trajectory: Trajectory, steps: Sequence[Step]) -> list[int]:
    """Return the indices of a trajectory's own steps that may be learnt from, in order."""
    first = trajectory.start_step or 0
    return [place for place, step in enumerate(steps) if step.step >= first and is_trainable(step)]


def _encode_agent_prompt(
    encoder: Encoder, images: ImageFile, settings: Settings, trajectory: Trajectory, steps: Sequence[Step]
) -> EncodedSequence:
    """Encode the prompt of the last of `steps`. steps: a trajectory's steps from the first on."""
    summarizer, policy = open_summarizer(settings), settings.policy
    history = PromptHistory(trajectory.instruction, images, policy, count=encoder.count, summarizer=summarizer)
    for step in steps[:-1]:
        history.add(step)
    return encoder.encode(_build_context(history, steps[-1], images))


def _load_trajectories(ws: Workspace, manifest: TrainingManifest, names: Collection[str]) -> dict[str, Trajectory]:
    files = manifest.paths(ws, "trajectories")
    rows = partitions.find_rows(ws, "trajectories", files, "trajectory_id", names, _TRAJECTORY_COLUMNS).to_pylist()
    found = {row["trajectory_id"]: record_from_row("trajectories", Trajectory, row) for row in rows}
    if lost := names - found.keys():
        what = f"{len(lost)} trajectories of the stores are missing, the first is {min(lost)}"
        raise DataError(what, where="table trajectories", fix="fetch them with `dvc checkout`")
    return found


def _load_histories(ws: Workspace, manifest: TrainingManifest, names: Collection[str]) -> dict[str, list[Step]]:
    """Read the steps of the trajectories `names`, in order, without `raw_text`."""
    found = defaultdict(list)
    files = manifest.paths(ws, "steps")
    for part in partitions.iter_matching_rows(ws, "steps", files, "trajectory_id", names, _STEP_COLUMNS):
        for row in part.to_pylist():
            found[row["trajectory_id"]].append(record_from_row("steps", Step, row))
    return {name: sorted(steps, key=lambda one: one.step) for name, steps in found.items()}


def _with_digests(trajectory: Trajectory, steps: Sequence[Step], settings: Settings) -> list[Step]:
    """Return the steps, each with the digest of older steps that its prompt shows, as rollouts store it.

    For people's steps this is the only place that asks a language model for digests.
    """
    if not settings.policy.summary_max_chars:
        return list(steps)
    history = PromptHistory(trajectory.instruction, {}, settings.policy, summarizer=open_summarizer(settings))
    prepared = []
    for step in steps:
        if is_trainable(step):
            history.memory(step.memory)
        prepared.append(step if step.memory or not is_trainable(step) else replace(step, memory=history.stored))
        history.add(step)
    return prepared


def _load_texts(ws: Workspace, manifest: TrainingManifest, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Read `raw_text` of steps without token ids (people's), by (trajectory_id, step). wanted: these keys. Raises
    DataError where one has no text."""
    names = {name for name, _ in wanted}
    files = manifest.paths(ws, "steps") if names else ()
    rows = partitions.find_rows(ws, "steps", files, "trajectory_id", names, ("step", "raw_text")).to_pylist()
    found = {(row["trajectory_id"], row["step"]): row["raw_text"] for row in rows if row["raw_text"]}
    if lost := wanted - found.keys():
        name, number = min(lost)
        where = f"trajectory {name}, step {number}"
        raise DataError("it has neither tokens nor a text to learn from", where=where, fix="put it into quarantine")
    return found


@dataclass(frozen=True)
class PreferencePair:
    """Hold a step that was kept, and on the same prompt a response that was not kept.

    chosen: the example of the step that was kept. rejected: token ids [response], the end token included where it was
    sampled.
    """

    chosen: Example
    rejected: tuple[int, ...]


def load_preference_pairs(
    ws: Workspace, manifest: TrainingManifest, encoder: Encoder, settings: Settings, folder: Path
) -> list[PreferencePair]:
    """Read the pairs of the view `preference_pairs` that training may use, sorted by trajectory, step and candidate.

    They are those of the newest `sft.window` iterations whose trajectory is in the store `sft`, or is a verified
    correction in `ct`, so that what did not solve its task, or was set aside, prefers nothing. Screens
    are copied to `folder`/pair-screens. Arguments and errors as in `MixtureDataset.draw`.
    """
    files = defaultdict(list)
    for shard in manifest.files:
        if shard.iteration > manifest.iteration - settings.sft.window:
            files[shard.table].append(ws.resolve(shard.path))

    def scan(table: str, *columns: str) -> Iterable[dict[str, Any]]:
        return (row for rows in partitions.scan_columns(ws, table, files[table], columns) for row in rows.to_pylist())

    stored = {row["trajectory_id"] for row in scan("sft", "trajectory_id")}
    stored |= {row["trajectory_id"] for row in scan("ct", "trajectory_id", "source") if row["source"] == "correction"}
    refused: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    response = ("trajectory_id", "step", "action", "raw_text", "token_ids")
    for row in scan("candidates", *response, "decision"):
        if row["trajectory_id"] in stored and row["decision"] != "accepted":
            refused[row["trajectory_id"], row["step"]].append(row)
    corrected = defaultdict(list)  # the model's step -> the corrections of it
    for row in scan("trajectories", "trajectory_id", "source", "parent_id", "start_step"):
        if row["source"] == "correction" and row["trajectory_id"] in stored:
            corrected[row["parent_id"], row["start_step"]].append(row["trajectory_id"])
    parents = {name for name, _ in corrected}
    for row in partitions.find_rows(ws, "steps", files["steps"], "trajectory_id", parents, response).to_pylist():
        for name in corrected[row["trajectory_id"], row["step"]]:
            refused[name, row["step"]].append(row)
    names = {name for name, _ in refused}
    trajectories, kept = _load_trajectories(ws, manifest, names), {}
    for name, steps in _load_histories(ws, manifest, names).items():
        for number, place in enumerate(_find_trainable(trajectories[name], steps)):
            step = steps[place]
            others = [row for row in refused[name, step.step] if row["action"] != step.action]
            if others:
                kept[ExampleRef(name, number, False)] = others
    found = _load_agent_examples(ws, manifest, set(kept), encoder, settings, folder / "pair-screens")
    pairs = [
        PreferencePair(found[one], tuple(row["token_ids"] or encoder.encode_text(row["raw_text"] or "")))
        for one in sorted(found)
        for row in kept[one]
    ]
    return [pair for pair in pairs if pair.rejected != pair.chosen.response]
