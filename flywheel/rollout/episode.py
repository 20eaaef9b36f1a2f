"""Play episodes, one or many at once: a policy acts in an environment, step by step (ReAct; UI-TARS-2, section 2.1).

Prompts are built here too, the same way for rollouts and training, and episodes are stored in files.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import zipfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from flywheel.agent.actions import ParsedResponse, ParseError, Type, TypeAt
from flywheel.agent.grammar import NO_SCREEN, Grammar, format_response, norm1000_space
from flywheel.agent.history import EpisodeMemory, PastStep, StepHistory, Summarizer
from flywheel.agent.parsing.parser import action_fields, parse_response
from flywheel.agent.prompt import Context, build_context
from flywheel.config import PolicySettings, Settings
from flywheel.envs import registry
from flywheel.envs.base import Env, Observation, StepListener, StepResult, Task
from flywheel.envs.registry import EnvProvider, open_environments
from flywheel.policy import open_policy
from flywheel.policy.client.language_model import open_summarizer
from flywheel.policy.protocol import Completion, PolicyBackend, SamplingParams
from flywheel.store.schema import Step, Trajectory, make_trajectory_id
from flywheel.utils.errors import DataError, EnvError, EnvTimeout, FlywheelError, PolicyTimeout
from flywheel.utils.files import atomic_file, disk_full_errors

log = logging.getLogger(__name__)

T = TypeVar("T")

# The prompt of a step from the steps before it, the same way for rollouts and training.


class PromptHistory:
    """Build the prompts of one trajectory, step by step: first the `context` of a step, then `add` the step.

    instruction: the task. images: PNG by sha256; may grow while the trajectory does. policy: block `policy`. count:
    counts the tokens of a context (`Encoder.count`), for the budget; None: an upper bound. summarizer: makes digests of
    steps that are too old for a line; None: rules.
    """

    def __init__(
        self,
        instruction: str,
        images: Mapping[str, bytes],
        policy: PolicySettings,
        *,
        count: Callable[[Context], int] | None = None,
        summarizer: Summarizer | None = None,
    ) -> None:
        self._instruction, self._images, self._policy, self._count = instruction, images, policy, count
        self._past = StepHistory(policy, summarizer)

    def context(self, screen: bytes | None, stored: str | None = None, *, observation: str | None = None) -> Context:
        """Build the context of the next step: the instruction, `memory`, and what the policy sees.

        screen: PNG; None where there is none. stored: the step's column `memory`, if it was stored: its digest is then
        used again. observation: text to read, if any. Raises BadInput without screen and observation, for a screen that
        cannot be used, and where instruction and screen do not fit the budget; otherwise as `memory`.
        """
        memory = self.memory(stored)
        return build_context(self._instruction, memory, screen, self._policy, self._count, observation=observation)

    def memory(self, stored: str | None = None) -> EpisodeMemory:
        """Return what the next step's context shows of earlier steps: the newest ones, and a digest of older ones.

        It is the report's M_t (section 2.1). stored: as in `context`; None: the digest is made now. May wait for a
        language model, which takes a thread without a running event loop (RuntimeError). Raises ValueError or TypeError
        where `stored` is not what the property `stored` gave.
        """
        if stored:
            self._past.recall(**json.loads(stored))
        return self._past.memory()

    @property
    def stored(self) -> str | None:
        """Return the digest of the newest context, as JSON for the step's column `memory`; None where there is none."""
        digest = self._past.digest
        if not digest.steps:
            return None
        written = json.dumps({"steps": digest.steps, "text": digest.text, "by": digest.by}, ensure_ascii=False)
        return written.encode("utf-8", "replace").decode()  # Parquet takes no lone surrogates

    def add(self, step: Step) -> None:
        """Append the `step` that was taken, with its screen if `images` has it."""
        action = step.action or ""
        self._past.add(
            PastStep(
                screenshot=self._images.get(step.image_sha256),
                thought=step.thought or "",
                action=action,
                tool_result=step.tool_result or "",
                action_type=step.action_type or "",
                typed=self._typed(action) if step.action_type in ("type", "type_at") else "",
                url=step.url or "",
                parse_error=step.parse_error or "",
                observation=step.observation,
            )
        )

    def follow(self, steps: Iterable[Step]) -> None:
        """Append steps that were taken, in order, and restore the newest digest stored in them. Raises as `memory`."""
        stored = None
        for step in steps:
            self.add(step)
            stored = step.memory or stored
        if stored:
            self._past.recall(**json.loads(stored))

    def _typed(self, action: str) -> str:
        # What numbers mean does not matter to a text, so any space does.
        grammar = Grammar(self._policy.template, norm1000_space())
        found = parse_response(format_response("", action), grammar).action
        return found.content if isinstance(found, Type | TypeAt) else ""


# Episodes.


@dataclass(frozen=True)
class Episode:
    """Hold an episode that was played. steps: in order. images: PNG by sha256, each screen once.

    last_observation: text after the last step, on which no action was chosen; None where there is none.
    """

    trajectory: Trajectory
    steps: tuple[Step, ...]
    images: Mapping[str, bytes] = field(repr=False)
    last_observation: str | None = field(default=None, repr=False)

    @property
    def id(self) -> str:
        """Return the trajectory_id."""
        return self.trajectory.trajectory_id

    @property
    def last_screen(self) -> bytes | None:
        """Return the screen (PNG) after the last step, on which no action was chosen; None where there is none."""
        return self.images.get(self.trajectory.final_image_sha256)

    @property
    def own_steps(self) -> tuple[Step, ...]:
        """Return the episode's steps without those that were repeated to reach its start."""
        return self.steps[self.trajectory.start_step or 0 :]


@dataclass(frozen=True)
class PrefixStep:
    """Hold a step that is repeated to reach an episode's start. before, after: what the environment returned; after:
    None where the step has no action. known: the step as it was stored."""

    before: StepResult
    known: Step
    after: StepResult | None


BoundCall = Callable[..., Awaitable[Any]]  # awaits a call of the environment; `times`: of its limit, by default once


class EpisodeStart(Protocol):
    """Begin an episode elsewhere than at its task's beginning, as `rollout.starts` does. parent_id: trajectory_id of
    the repeated steps; None where they are of none."""

    parent_id: str | None

    async def begin(self, env: Env, bound: BoundCall) -> tuple[Sequence[PrefixStep], StepResult]:
        """Bring `env` to the start; return the steps up to it, and the result to go on from.

        bound: awaits each call of the environment within its time limit. Raises EnvError where the environment fails,
        and an error of its own where there is no such start.
        """


def derive_seed(*names: object) -> int:
    """Derive a seed from the texts and the order of `names`: 0 <= seed < 2**31, the same on every machine."""
    return int.from_bytes(hashlib.sha256("|".join(map(str, names)).encode()).digest()[:4]) >> 1


async def run_episode(
    env: Env,
    policy: PolicyBackend,
    task: Task,
    sample: int,
    *,
    iteration: int,
    settings: Settings,
    temperature: float,
    run_id: str = "",
    seed: int | None = None,
    on_step: Callable[[int], None] = lambda step: None,
    start: EpisodeStart | None = None,
) -> Episode:
    """Play one episode: reset `env` to the task, and let the policy act until the task's end or its step budget.

    Text without an action is a step with `parse_error`: it costs a step of the budget, and the environment is not
    stepped. policy: chooses the actions. sample: number of the episode among those of its task and weights. iteration,
    run_id: stored in its rows. temperature: of sampling; 0 is greedy. seed: each step's sampling seed is a function of
    it and the step; None: of the trajectory's identity. on_step: called before each step with its number. start: where
    it begins, with the steps up to there as its first; None: at the task's beginning. Raises EnvError and EnvTimeout
    where the environment fails (`run_rollout` retries, and records a crash in the episode's status), PolicyError,
    PolicyTimeout and PolicyBusy where the policy does, BadInput for an environment that is not known or wrong settings
    of it, for a task that the environment cannot play, and for what the policy cannot be shown; DataError for a state
    that the task's verifier cannot read; and what the `begin` of `start` raises.
    """
    begun = begin_trajectory(task, sample, policy.weight_version, iteration=iteration, run_id=run_id)
    identity = begun.trajectory_id
    recorder, names = _Recorder(task, begun, settings, policy), identity if seed is None else seed
    limit_s = 2 * registry.find_backend(task.environment).limits(settings).call_s
    late = EnvTimeout(f"the environment did not answer in {limit_s:g} s", where=f"task {task.task_id}")
    policy_s = 2 * settings.policy.timeout_s
    silent = PolicyTimeout(f"the policy did not answer in {policy_s:g} s", where="rollout")
    # The task's own seed, not the sample's: all samples of a task see the same world.
    if start is None:
        result = await await_within(limit_s, env.reset(task, task.seed), late)
    else:
        prefix, result = await start.begin(env, lambda call, times=1: await_within(times * limit_s, call, late))
        await asyncio.to_thread(recorder.repeat, prefix, start.parent_id)
    terminated = result.terminated
    while not (terminated or result.truncated) and len(recorder.steps) < task.max_steps:
        seen, at = result.observation, _now()
        on_step(len(recorder.steps))
        # In a thread: tokens are counted, and a language model may be asked for a digest.
        context = await asyncio.to_thread(recorder.history.context, seen.screenshot, observation=observation_text(seen))
        limit, seed_of_step = settings.policy.max_new_tokens, derive_seed(names, len(recorder.steps))
        sampling = SamplingParams(temperature, limit, seed_of_step, action=True, session=identity)
        completion = await await_within(policy_s, policy.complete(context, sampling), silent)
        parsed = parse_response(completion.text, recorder.grammar(seen))
        broken = isinstance(parsed.action, ParseError)
        if isinstance(env, StepListener):
            env.announce(describe_model_step(completion, parsed, recorder.grammar(seen)))
        after = result if broken else await await_within(limit_s, env.step(parsed.action), late)
        recorder.add(result, completion, parsed, None if broken else after, at)
        result, terminated = after, after.terminated
    return recorder.episode(result, terminated)


# What a step's chooser decided, which repeating the step keeps.
CHOSEN_FIELDS = ("author", "thought", "action_type", "action", "raw_text", "parse_error", "x", "y", "x2", "y2")
CHOSEN_FIELDS += ("weight_version", "misclick")


def describe_model_step(completion: Completion, parsed: ParsedResponse, grammar: Grammar) -> dict[str, Any]:
    """Return the fields of a step that the model chose, as JSON values by their names in the table `steps`.

    completion: the model's. parsed: its text, as `parse_response` read it. grammar: in which the action is written.
    """
    action = parsed.action
    return {
        "author": "model",
        "thought": parsed.thought,
        "raw_text": completion.text,
        "prompt_tokens": completion.prompt_tokens,
        "token_ids": list(completion.token_ids),
        "logprobs": list(completion.logprobs),
        "weight_version": completion.weight_version,
        **({"parse_error": action.reason} if isinstance(action, ParseError) else action_fields(action, grammar)),
    }


class _Recorder:
    """Collect the steps of one episode."""

    def __init__(self, task: Task, begun: Trajectory, settings: Settings, policy: PolicyBackend) -> None:
        self.begun, self.settings = begun, settings
        self.steps: list[Step] = []
        self.repeated = 0  # of its steps, the first
        self.images: dict[str, bytes] = {}
        encoder = getattr(policy, "encoder", None)  # a policy without a checkpoint has none
        self.history = PromptHistory(
            task.instruction,
            self.images,
            settings.policy,
            count=encoder.count if encoder else None,
            summarizer=open_summarizer(settings),
        )

    def grammar(self, seen: Observation) -> Grammar:
        """Return the grammar for the screen that the policy sees."""
        return observation_grammar(self.settings.policy, seen)

    def repeat(self, prefix: Sequence[PrefixStep], parent_id: str | None) -> None:
        """Add the steps up to the episode's start, as if the policy had taken them. Log-probabilities are left out:
        these weights did not sample them."""
        for one in prefix:
            self.history.memory(one.known.memory)
            self._append(one.before, one.after, _now(), **{name: getattr(one.known, name) for name in CHOSEN_FIELDS})
        if prefix:
            self.repeated = len(prefix)
            self.begun = replace(self.begun, parent_id=parent_id, start_step=len(prefix))

    def add(
        self, before: StepResult, completion: Completion, parsed: ParsedResponse, after: StepResult | None, at: datetime
    ) -> None:
        """Add a step. before, after: what the environment returned; after: None without an action. at: its start."""
        chosen = describe_model_step(completion, parsed, self.grammar(before.observation))
        chosen |= {name: tuple(chosen[name]) for name in ("token_ids", "logprobs")}
        self._append(before, after, at, sampled_logprobs=tuple(completion.sampled_logprobs), **chosen)

    def _append(self, before: StepResult, after: StepResult | None, at: datetime, **chosen: Any) -> None:
        """Append a step. chosen: the fields that say what was chosen, and by whom."""
        seen = before.observation
        step = Step(
            self.begun.trajectory_id,
            len(self.steps),
            image_sha256=keep_screen(seen, self.images),
            url=seen.url,
            observation=observation_text(seen),
            tool_result=(after.info.get("note") or after.info.get("result") or None) if after else None,
            reward=after.reward if after else 0.0,
            state_score=before.info.get("score"),
            terminated=bool(after and after.terminated),
            truncated=bool(after and after.truncated),
            started_at=at,
            ended_at=_now(),
            memory=self.history.stored,
            **chosen,
        )
        self.steps.append(step)
        self.history.add(step)

    def episode(self, last: StepResult, terminated: bool) -> Episode:
        own = self.steps[self.repeated :]
        if own and all(step.parse_error is not None for step in own):
            status, error = "invalid", "no step held an action"
        else:
            status, error = ("completed", None) if terminated else ("truncated", None)
        if own and not terminated:
            self.steps[-1] = replace(self.steps[-1], truncated=True)
        trajectory = replace(
            self.begun,
            ended_at=_now(),
            status=status,
            error=error,
            steps=len(self.steps),
            reward=sum(step.reward for step in self.steps),
            final_state=final_state_json(last),
            final_image_sha256=keep_screen(last.observation, self.images),
        )
        return Episode(trajectory, tuple(self.steps), self.images, observation_text(last.observation))


def begin_trajectory(task: Task, sample: int, version: str, *, iteration: int, run_id: str = "") -> Trajectory:
    """Make the trajectory of an episode of `task` that begins now. version: digest of the weights that begin it.
    sample, iteration, run_id: as in `run_episode`."""
    started = _now()
    return Trajectory(
        make_trajectory_id(iteration, task.task_id, sample, version),
        task.task_id,
        task.domain,
        task.world,
        task.level,
        task.instruction,
        source="rollout",
        author="model",
        sample=sample,
        policy_version=version,
        started_at=started,
        ended_at=started,
        run_id=run_id or None,
    )


def build_crashed_episode(begun: Trajectory, error: str) -> Episode:
    """Make an episode whose environment crashed in every try: without steps and screens, and never scored.

    begun: of `begin_trajectory`. error: the last one, in words.
    """
    return Episode(replace(begun, ended_at=_now(), status="crashed", error=error, steps=0), (), {})


def _now() -> datetime:
    return datetime.now(UTC)


def keep_screen(seen: Observation, images: dict[str, bytes]) -> str | None:
    """Add an observation's screen to `images`, PNG by sha256; return its sha256, None where there is no screen."""
    if seen.screenshot is None:
        return None
    sha256 = hashlib.sha256(seen.screenshot).hexdigest()
    images[sha256] = seen.screenshot
    return sha256


def observation_text(seen: Observation) -> str | None:
    """Return an observation's text, as it is shown and stored; None where there is a screen and no text.

    Lone surrogates are replaced, as Parquet takes none.
    """
    if not seen.text and seen.screenshot is not None:
        return None
    return seen.text.encode("utf-8", "replace").decode()


def observation_grammar(policy: PolicySettings, seen: Observation) -> Grammar:
    """Return the grammar of an action that is chosen on the observation `seen`.

    policy: block `policy`. Without a screenshot a screen of NO_SCREEN pixels is assumed, as points mean nothing there.
    Raises BadInput where coordinates are in pixels and the screen cannot be resized (`smart_resize`).
    """
    return Grammar.of(policy, NO_SCREEN if seen.screenshot is None else (seen.width, seen.height))


def final_state_json(result: StepResult) -> str:
    """Write the state that the verifier reads, of an episode's last `result`, as JSON; `null` where it has none.

    It is for the column `final_state` of `trajectories`. Raises TypeError for a state that is not JSON.
    """
    return json.dumps(result.info.get("state"), sort_keys=True, ensure_ascii=False)


async def await_within(limit_s: float, call: Awaitable[T], error: FlywheelError) -> T:
    """Await `call` for `limit_s` seconds, else raise `error`: for a call that hangs past its own deadline.

    Returns what it returns. A TimeoutError of `call` itself becomes `error` too.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await call
    except TimeoutError:
        raise error from None


_TIMES = ("started_at", "ended_at")
_ROWS = "episode.json"
# What `zipfile` raises: a changed byte of the directory may also stand for a cipher (RuntimeError) or for zlib.
_UNREADABLE = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def write_episode(path: Path, episode: Episode, facts: Mapping[str, Any]) -> None:
    """Write an episode to the zip file `path`, whole or not at all: steps as JSON, screens as PNG.

    path: an existing file is replaced. facts: JSON values stored beside the episode, for `read_episode_facts`. Numbers
    are read back exactly. Raises DiskFull, OSError where it cannot be written, TypeError for facts that are not JSON.
    """
    rows = {"facts": facts, "trajectory": vars(episode.trajectory), "steps": [vars(step) for step in episode.steps]}
    rows["last_observation"] = episode.last_observation
    # Not compressed: PNGs are.
    with disk_full_errors(path), atomic_file(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        file.writestr(_ROWS, json.dumps(rows, default=datetime.isoformat))
        for sha256, png in episode.images.items():
            file.writestr(f"{sha256}.png", png)


def read_episode_facts(path: Path) -> dict[str, Any]:
    """Read the facts that `write_episode` stored in the zip file `path`, without the episode.

    Raises DataError for a file that is missing or broken.
    """
    with _open_episode(path) as file:
        return json.loads(file.read(_ROWS))["facts"]


def read_episode(path: Path) -> Episode:
    """Read the episode in the zip file `path`, equal to what was written.

    Raises DataError for a file that is missing, cut off or damaged.
    """
    from flywheel.store.schema import record_from_row  # imports pyarrow, which playing alone does not need

    with _open_episode(path) as file:
        rows = json.loads(file.read(_ROWS))
        images = {name.removesuffix(".png"): file.read(name) for name in file.namelist() if name != _ROWS}
        steps = tuple(record_from_row("steps", Step, _parse_times(row)) for row in rows["steps"])
        trajectory = record_from_row("trajectories", Trajectory, _parse_times(rows["trajectory"]))
    return Episode(trajectory, steps, images, rows.get("last_observation"))


@contextmanager
def _open_episode(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an episode's file; what is raised within the block for a file that is missing or damaged is a DataError."""
    try:
        with zipfile.ZipFile(path) as file:
            yield file
    except (*_UNREADABLE, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"the episode cannot be read: {error}", where=path, fix="delete its folder") from None


def _parse_times(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: datetime.fromisoformat(row[name]) for name in _TIMES if row.get(name)}


# Many episodes at once, bounded; one whose environment is lost is begun again.


class EpisodeSlots:
    """Hold the slots that limit how many episodes are played at once.

    They are rollout.max_concurrent in all, and for each kind of environment as many as it has places. Of leased
    environments only the manager knows the number: an episode without one waits there. count: of the slots. kinds:
    names of the kinds of environments. Raises BadInput for an unknown one, or wrong settings of it.
    """

    def __init__(self, settings: Settings, kinds: Iterable[str]) -> None:
        most, leased = settings.rollout.max_concurrent, settings.sandbox.backend == "manager"
        of_kind = {name: most if leased else registry.find_backend(name).limits(settings).places for name in set(kinds)}
        self.count = min(most, sum(of_kind.values()))
        self._free = asyncio.Semaphore(most)
        self._of_kind = {name: asyncio.Semaphore(places) for name, places in of_kind.items()}

    @asynccontextmanager
    async def acquire(self, task: Task) -> AsyncIterator[None]:
        """Hold a slot for an episode of `task` within the block; first come, first served within a kind. Raises
        KeyError for a task of none of the kinds."""
        async with self._of_kind[task.environment], self._free:
            yield


@dataclass
class RolloutStats:
    """Hold the counts of retries and environment failures of one rollout or of several.

    retries: episodes begun again after their environment failed. The others are the environments' own counts, 0 where
    they keep none: crashes; reclaimed: sessions taken back; answers: resets and steps answered, also of lost episodes.
    """

    retries: int = 0
    crashes: int = 0
    reclaimed: int = 0
    answers: int = 0

    def add(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Add the growth of the environments' counts. before, after: number of events by name, at two moments; read are
        Crashed, Reclaimed and Stepped, and a missing one counts as 0."""
        for name, event in (("crashes", "Crashed"), ("reclaimed", "Reclaimed"), ("answers", "Stepped")):
            setattr(self, name, getattr(self, name) + after.get(event, 0) - before.get(event, 0))


async def run_rollout(
    tasks: Sequence[Task],
    samples: int,
    policy: PolicyBackend,
    environments: EnvProvider,
    *,
    iteration: int,
    settings: Settings,
    temperature: float,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    run_id: str = "",
    stats: RolloutStats | None = None,
) -> list[Episode]:
    """Play `samples` episodes of each task, as many at once as there are `EpisodeSlots`; return them in order of id.

    tasks: of any environment kinds, each once. policy: chooses the actions. environments: lends one for each episode.
    iteration, run_id: stored in the episodes' rows. temperature: of sampling; 0 is greedy. on_episode: called with each
    as it ends, crashed ones included. stats: counters that are added to; None: no one needs them. Nothing is stored.
    After a crash or a hang an episode starts again in a fresh environment, rollout.retries times; then its status is
    `crashed`, with the error. Raises PolicyError where the policy fails; BadInput for an environment kind that is not
    known, wrong settings of it, a `language_model.endpoint` that is asked for and is not an address, a task that its
    environment cannot play, and what the policy cannot be shown or its server refuses; DataError for a state that a
    task's verifier cannot read; and what `on_episode` raises. The first error ends the other episodes.
    """
    stats, before = stats or RolloutStats(), _event_counts(environments)
    places = EpisodeSlots(settings, (task.environment for task in tasks))
    playing = {"iteration": iteration, "settings": settings, "temperature": temperature}
    playing |= {"run_id": run_id, "stats": stats}

    async def one(task: Task, sample: int) -> Episode:
        async with places.acquire(task):
            episode = await run_episode_with_retries(task, sample, policy, environments, **playing)
        on_episode(episode)
        return episode

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(task, sample)) for task in tasks for sample in range(samples)]
    except BaseExceptionGroup as several:
        # One cause stops the others; callers want that cause by its class.
        raise several.exceptions[0] from None
    finally:
        stats.add(before, _event_counts(environments))
    return sorted((task.result() for task in running), key=lambda episode: episode.id)


async def run_episode_with_retries(
    task: Task,
    sample: int,
    policy: PolicyBackend,
    environments: EnvProvider,
    *,
    iteration: int,
    settings: Settings,
    run_id: str = "",
    stats: RolloutStats | None = None,
    **playing: Any,
) -> Episode:
    """Play one episode; after a crash or a hang start it again in a fresh environment, rollout.retries times.

    After these its status is `crashed`, with the error, and it must not be scored. task, sample, policy, iteration,
    settings, run_id: as in `run_episode`. environments: lends one for each try. stats: its `retries` are counted up;
    None: no one needs them. playing: further arguments of `run_episode`. Raises PolicyError, BadInput and DataError as
    `run_episode`; its EnvError is what is retried.
    """
    # Up to a start, steps are played too, by the solver and again, or waited for while another episode plays them.
    limit_s = _episode_deadline(task, settings) * (1 if playing.get("start") is None else 3)
    begun = begin_trajectory(task, sample, policy.weight_version, iteration=iteration, run_id=run_id)
    for number in range(settings.rollout.retries + 1):
        if stats is not None:
            stats.retries += number > 0
        try:
            async with asyncio.timeout(limit_s), environments.env(task) as env:
                names = {"iteration": iteration, "run_id": run_id}
                return await run_episode(env, policy, task, sample, settings=settings, **names, **playing)
        except (EnvError, TimeoutError) as caught:
            error = caught
            if not isinstance(caught, EnvError):
                error = EnvTimeout(f"the episode did not end in {limit_s:g} s", where=f"task {task.task_id}")
            log.warning("episode of %s, sample %d, try %d: %s", task.task_id, sample, number + 1, error)
    return build_crashed_episode(begun, str(error))


def _event_counts(environments: EnvProvider) -> Mapping[str, int]:
    return getattr(environments, "counts", {})


def _episode_deadline(task: Task, settings: Settings) -> float:
    """Return the seconds that an episode may take: every call at its own limit, and the start of an environment."""
    call_s = registry.find_backend(task.environment).limits(settings).call_s
    digest_s = settings.language_model.timeout_s if settings.policy.summarizer == "language_model" else 0
    return (task.max_steps + 2) * (2 * (call_s + settings.policy.timeout_s) + digest_s)


@dataclass(frozen=True)
class RolloutWorker:
    """Hold a policy and environments that stay open from one rollout to the next, for callers without an event loop.

    Its event loop runs in a thread of its own, between rollouts too: it watches browsers and closes idle ones.
    """

    policy: PolicyBackend
    environments: EnvProvider
    _loop: BlockingPortal

    def run(self, play: Callable[[PolicyBackend, EnvProvider], Coroutine[None, None, T]]) -> T:
        """Run `play` on the worker's event loop, and return its result or raise its error; Ctrl-C cancels it."""
        playing = self._loop.start_task_soon(play, self.policy, self.environments)
        try:
            return playing.result()
        except BaseException:
            playing.cancel()
            raise


@contextmanager
def open_rollout_worker(model: Path, tasks: Iterable[Task], settings: Settings, root: Path) -> Iterator[RolloutWorker]:
    """Open a checkpoint as the policy, and the environments that the tasks need, until the end of the block.

    model: folder of the checkpoint. root: the folder that relative paths in the settings count from. Raises ModelError
    and PolicyError as `open_policy`; BadInput as it does, and for wrong settings of the environments or none of a kind;
    EnvError where they cannot be opened, EnvTimeout where they do not open or close in time.
    """
    with (
        start_blocking_portal() as loop,
        loop.wrap_async_context_manager(_open_policy_and_environments(model, tasks, settings, root)) as both,
    ):
        yield RolloutWorker(*both, loop)


@asynccontextmanager
async def _open_policy_and_environments(
    model: Path, tasks: Iterable[Task], settings: Settings, root: Path
) -> AsyncIterator[tuple[PolicyBackend, EnvProvider]]:
    policy = open_policy(model, settings.policy)
    try:
        async with open_environments(settings, tasks, root) as environments:
            yield policy, environments
    finally:
        await policy.close()
