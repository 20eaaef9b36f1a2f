"""Play one episode: the ReAct loop (section 2.1) of a policy in an environment, and its file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flywheel.agent.actions import Action, ParseError
from flywheel.agent.grammar import NO_SCREEN, Grammar
from flywheel.agent.parsing.parser import action_fields, parse_response
from flywheel.agent.prompt import Context
from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.base import Env, Observation, StepResult, Task
from flywheel.policy.client.language_model import open_summarizer
from flywheel.policy.protocol import Completion, PolicyBackend, SamplingParams
from flywheel.rollout.history import PromptHistory
from flywheel.store.trajectory import Step, Trajectory, make_trajectory_id
from flywheel.utils.errors import DataError, EnvTimeout, PolicyTimeout
from flywheel.utils.files import atomic_file


@dataclass(frozen=True)
class Episode:
    """Hold an episode that was played.

    images: PNG by sha256, each screen once.

    last_screen, last_observation: what was seen after the last step, which no action was chosen on: a PNG, and what was
    there to read; None where there was no such thing, both where the environment crashed.
    """

    trajectory: Trajectory
    steps: tuple[Step, ...]
    images: Mapping[str, bytes] = field(repr=False)
    last_screen: bytes | None = field(default=None, repr=False)
    last_observation: str | None = field(default=None, repr=False)

    @property
    def id(self) -> str:
        return self.trajectory.trajectory_id


def derive_seed(*names: object) -> int:
    """Derive a seed from names: 0 <= seed < 2**31, the same on every machine.

    Their texts (`str`) and their order count.
    """
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
) -> Episode:
    """Reset `env` to the task and act until its end or its step budget.

    Text without an action is a step with `parse_error`: it costs a step of the budget, and the environment is not
    stepped. sample: number of the episode among those of its task and weights. temperature: of sampling; 0 is greedy.
    seed: each step's sampling seed is a function of it and the step; None: of the trajectory's identity. on_step:
    called with the number of each step before it. Raises EnvError, EnvTimeout, PolicyError and PolicyTimeout;
    `rollout.pool` retries, and records a crash in the episode's status.
    """
    identity = make_trajectory_id(iteration, task.task_id, sample, policy.weight_version)
    recorder, names = _Recorder(task, identity, settings, policy), identity if seed is None else seed
    version, started = policy.weight_version, _now()
    # The task's own seed, not the sample's: all samples of a task see the same world.
    result = await _call_env(env.reset(task, task.seed), settings, task)
    terminated = result.terminated
    while not (terminated or result.truncated) and recorder.count < task.max_steps:
        seen, at = result.observation, _now()
        on_step(recorder.count)
        # In a thread: tokens are counted, and a language model may be asked for a digest.
        context = await asyncio.to_thread(
            recorder.history.context, seen.screenshot, observation=_observation_text(seen)
        )
        limit, seed_of_step = settings.policy.max_new_tokens, derive_seed(names, recorder.count)
        sampling = SamplingParams(temperature, limit, seed_of_step, action=True, session=identity)
        completion = await _call_policy(policy, context, sampling, settings)
        parsed = parse_response(completion.text, recorder.grammar(seen))
        broken = isinstance(parsed.action, ParseError)
        after = result if broken else await _call_env(env.step(parsed.action), settings, task)
        recorder.add(result, completion, parsed.thought, parsed.action, None if broken else after, at)
        result, terminated = after, after.terminated
    return recorder.episode(result, terminated, sample, version, started, run_id)


class _Recorder:
    """Collects the steps of one episode."""

    def __init__(self, task: Task, identity: str, settings: Settings, policy: PolicyBackend) -> None:
        self.task, self.identity, self.settings = task, identity, settings
        self.steps: list[Step] = []
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
        """What the policy's numbers mean on what it sees."""
        size = NO_SCREEN if seen.screenshot is None else (seen.width, seen.height)
        return Grammar.of(self.settings.policy, size)

    @property
    def count(self) -> int:
        return len(self.steps)

    def add(
        self,
        before: StepResult,
        completion: Completion,
        thought: str,
        action: Action | ParseError,
        after: StepResult | None,
        started: datetime,
    ) -> None:
        """after: None where the text held no action."""
        seen, sha256 = before.observation, None
        if seen.screenshot is not None:
            sha256 = hashlib.sha256(seen.screenshot).hexdigest()
            self.images[sha256] = seen.screenshot
        broken = isinstance(action, ParseError)
        done = {"parse_error": action.reason} if broken else action_fields(action, self.grammar(seen))
        step = Step(
            self.identity,
            self.count,
            "model",
            thought,
            raw_text=completion.text,
            prompt_tokens=completion.prompt_tokens,
            token_ids=tuple(completion.token_ids),
            logprobs=tuple(completion.logprobs),
            sampled_logprobs=tuple(completion.sampled_logprobs),
            weight_version=completion.weight_version,
            image_sha256=sha256,
            url=seen.url,
            observation=_observation_text(seen),
            tool_result=(after.info.get("note") or after.info.get("result") or None) if after else None,
            reward=after.reward if after else 0.0,
            state_score=before.info.get("score"),
            terminated=bool(after and after.terminated),
            truncated=bool(after and after.truncated),
            started_at=started,
            ended_at=_now(),
            memory=self.history.stored,
            **done,
        )
        self.steps.append(step)
        self.history.add(step)

    def episode(
        self, last: StepResult, terminated: bool, sample: int, version: str, started: datetime, run_id: str
    ) -> Episode:
        if self.steps and all(step.parse_error is not None for step in self.steps):
            status, error = "invalid", "no step held an action"
        else:
            status, error = ("completed", None) if terminated else ("truncated", None)
        if self.steps and not terminated:
            self.steps[-1] = replace(self.steps[-1], truncated=True)
        trajectory = replace(
            _build_trajectory(self.task, self.identity, sample, version, started, run_id),
            status=status,
            error=error,
            steps=self.count,
            reward=sum(step.reward for step in self.steps),
            final_state=json.dumps(last.info.get("state"), sort_keys=True, ensure_ascii=False),
        )
        seen = last.observation
        return Episode(trajectory, tuple(self.steps), self.images, seen.screenshot, _observation_text(seen))


def build_crashed_episode(
    task: Task, sample: int, version: str, *, iteration: int, error: str, started: datetime, run_id: str = ""
) -> Episode:
    """Build the record of an episode whose environment crashed in every try: kept with its error, never scored."""
    identity = make_trajectory_id(iteration, task.task_id, sample, version)
    trajectory = _build_trajectory(task, identity, sample, version, started, run_id)
    return Episode(replace(trajectory, status="crashed", error=error, steps=0), (), {})


def _build_trajectory(
    task: Task, identity: str, sample: int, version: str, started: datetime, run_id: str
) -> Trajectory:
    return Trajectory(
        identity,
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
        ended_at=_now(),
        run_id=run_id or None,
    )


def _now() -> datetime:
    return datetime.now(UTC)


def _observation_text(seen: Observation) -> str | None:
    """What there is to read, as it is shown and kept: Parquet takes no half of a surrogate pair."""
    if not seen.text and seen.screenshot is not None:
        return None
    return seen.text.encode("utf-8", "replace").decode()


async def _call_env(call, settings: Settings, task: Task) -> StepResult:
    """The environment has a deadline of its own; this one stands behind it for an environment that hangs."""
    limit = 2 * registry.find_backend(task.environment).limits(settings).call_s
    try:
        async with asyncio.timeout(limit):
            return await call
    except TimeoutError:
        raise EnvTimeout(f"the environment did not answer in {limit:g} s", where=f"task {task.task_id}") from None


async def _call_policy(
    policy: PolicyBackend, context: Context, sampling: SamplingParams, settings: Settings
) -> Completion:
    limit = 2 * settings.policy.timeout_s
    try:
        async with asyncio.timeout(limit):
            return await policy.complete(context, sampling)
    except TimeoutError:
        raise PolicyTimeout(f"the policy did not answer in {limit:g} s", where="rollout") from None


_TIMES = ("started_at", "ended_at")
_ROWS, _LAST = "episode.json", "last.png"


def write_episode(path: Path, episode: Episode, facts: Mapping[str, Any]) -> None:
    """Write an episode to the zip file `path`, whole or not at all: steps as JSON, screens as PNG.

    path: replaced where it is there. facts: JSON values stored beside the episode, for `read_episode_facts`. Numbers
    come back as they are, to the last bit.
    """
    rows = {"facts": facts, "trajectory": vars(episode.trajectory), "steps": [vars(step) for step in episode.steps]}
    rows["last_observation"] = episode.last_observation
    with atomic_file(path) as temporary, zipfile.ZipFile(temporary, "w") as file:  # not compressed: PNGs are
        file.writestr(_ROWS, json.dumps(rows, default=datetime.isoformat))
        for sha256, png in episode.images.items():
            file.writestr(f"{sha256}.png", png)
        if episode.last_screen is not None:
            file.writestr(_LAST, episode.last_screen)


def read_episode_facts(path: Path) -> dict[str, Any]:
    """Read the facts that `write_episode` was given, alone. Raises DataError for a file that is missing or broken."""
    with _open_episode(path) as file:
        return json.loads(file.read(_ROWS))["facts"]


def read_episode(path: Path) -> Episode:
    """Read the episode in the zip file `path`, equal to what was written.

    Raises DataError for a file that is missing, cut off or damaged.
    """
    from flywheel.store.schema import record_from_row  # imports pyarrow, which playing alone does not need

    with _open_episode(path) as file:
        rows = json.loads(file.read(_ROWS))
        screens = {name: file.read(name) for name in file.namelist() if name != _ROWS}
        steps = tuple(record_from_row("steps", Step, _parse_times(row)) for row in rows["steps"])
        trajectory = record_from_row("trajectories", Trajectory, _parse_times(rows["trajectory"]))
    last = screens.pop(_LAST, None)
    images = {name.removesuffix(".png"): png for name, png in screens.items()}
    return Episode(trajectory, steps, images, last, rows.get("last_observation"))


@contextmanager
def _open_episode(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an episode's file; what is raised within the block for a file that is missing or damaged is a DataError."""
    try:
        with zipfile.ZipFile(path) as file:
            yield file
    except (OSError, EOFError, zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"the episode cannot be read: {error}", where=path, fix="delete its folder") from None


def _parse_times(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: datetime.fromisoformat(row[name]) for name in _TIMES if row.get(name)}
