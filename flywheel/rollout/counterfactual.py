"""Play on from the state before a stored step with one thing changed, to see what would have come of it.

The state is restored by a checkpoint of the environment where it has one, else by carrying out the steps before it
again; either way each screen is compared with the stored one, so that what follows began where the run was.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from flywheel.agent.actions import Action, ParseError
from flywheel.agent.grammar import Grammar, format_response, grammar_without_thinking
from flywheel.agent.parsing.parser import action_fields, parse_response
from flywheel.agent.prompt import Context
from flywheel.config import PolicySettings, Settings
from flywheel.envs.base import Checkpointable, Env, StepResult, Task
from flywheel.envs.registry import EnvProvider
from flywheel.policy.protocol import Completion, PolicyBackend, SamplingParams
from flywheel.rollout.episode import (
    BoundCall,
    Episode,
    PrefixStep,
    derive_seed,
    observation_grammar,
    observation_text,
    run_episode_with_retries,
)
from flywheel.store.schema import COUNTERFACTUAL, Step, Trajectory
from flywheel.utils.errors import BadInput, DataError, EnvError

ChangeKind = Literal["nothing", "action", "thought", "instruction", "temperature", "model"]
PERSON = "human"  # author of a step that whoever asks has chosen


@dataclass(frozen=True)
class CounterfactualChange:
    """Hold what a counterfactual run changes. kind: of the change; "nothing" is the control. value: the new action in
    the model's grammar, thought, instruction, temperature, or checkpoint's folder; "" for nothing. Raises BadInput for
    another kind."""

    kind: ChangeKind = "nothing"
    value: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(ChangeKind):
            raise BadInput(f"{self.kind!r} cannot be changed", fix=f"one of {', '.join(get_args(ChangeKind)[1:])}")


class StateNotRestored(DataError):
    """Signal that the state before a step cannot be restored: its replay shows something else."""


def parse_changed_action(text: str, policy: PolicySettings, grammar: Grammar) -> Action:
    """Parse an action, as the model writes it, that is to be done in place of a step's.

    text: such as `click(point='<point>12 30</point>')`. policy: block `policy`, which only names the template in the
    error. grammar: the model's, for the step's screen. Raises BadInput for a text that is no action.
    """
    found = parse_response(format_response("", text), grammar_without_thinking(grammar)).action
    if isinstance(found, ParseError):
        what = f"no action of the model's grammar ({policy.template}): {found.reason}"
        raise BadInput(what, where=f"action {text[:80]!r}", fix="as in the trajectory's other steps, or `finished()`")
    return found


class ReplayedState:
    """Bring environments to the state before a step of a stored episode (an `EpisodeStart`), for one event loop.

    The first environment carries out the steps before it, each on the screen that was stored with it; where it saves
    checkpoints, the others restore the one that was taken then.
    """

    def __init__(
        self, parent_id: str, steps: Sequence[Step], at: int, task: Task, policy: PolicySettings, action: str | None
    ) -> None:
        """Take the step before which to begin; the first call of `begin` restores its state.

        parent_id: trajectory_id of the stored episode. steps: all of it, in order. at: number of the step before which
        the state is restored. task: of the episode. policy: block `policy`, for the grammar of stored actions. action:
        as the model writes it, carried out in place of the step's own; None: none is.
        """
        self.parent_id = parent_id
        self._steps, self._at, self._task, self._policy, self._action = steps, at, task, policy, action
        self._lock = asyncio.Lock()
        self._checkpoint: bytes | None = None
        self._prefix: list[PrefixStep] | None = None

    async def begin(self, env: Env, bound: BoundCall) -> tuple[Sequence[PrefixStep], StepResult]:
        """Bring `env` to the state, and carry out the changed action if there is one.

        Returns the steps up to there, the changed one among them, and the result to go on from. Raises StateNotRestored
        where the replay shows another screen, EnvError where the environment fails, or comes to another state than it
        came to before.
        """
        async with self._lock:
            if self._prefix is None:
                prefix, result = await self._replay(env, bound)
                if self._at and isinstance(env, Checkpointable):
                    self._checkpoint = await bound(env.checkpoint())
                self._prefix = prefix
            else:
                result = await self._restore(env, bound)
        return await self._change(env, bound, self._prefix, result)

    async def _restore(self, env: Env, bound: BoundCall) -> StepResult:
        try:
            if self._checkpoint is None:
                return (await self._replay(env, bound))[1]
            await bound(env.reset(self._task, self._task.seed))
            result = await bound(env.restore(self._checkpoint), times=self._at + 2)  # perhaps by playing it again
            self._compare(result, self._at)
            return result
        except StateNotRestored as error:
            raise EnvError(f"a state was restored before, and now it is not: {error.what}", where=error.where) from None

    async def _replay(self, env: Env, bound: BoundCall) -> tuple[list[PrefixStep], StepResult]:
        result, prefix = await bound(env.reset(self._task, self._task.seed)), []
        for number, step in enumerate(self._steps[: self._at]):
            self._compare(result, number)
            after = None
            if step.action is not None:  # else its text held none, and the environment did not notice
                grammar = grammar_without_thinking(observation_grammar(self._policy, result.observation))
                action = parse_response(format_response("", step.action), grammar).action
                if isinstance(action, ParseError):
                    raise self._fault(number, f"its action cannot be read: {action.reason}")
                after = await bound(env.step(action))
            prefix.append(PrefixStep(result, step, after))
            result = after or result
        self._compare(result, self._at)
        return prefix, result

    async def _change(
        self, env: Env, bound: BoundCall, prefix: list[PrefixStep], result: StepResult
    ) -> tuple[list[PrefixStep], StepResult]:
        if self._action is None:
            return prefix, result
        grammar = observation_grammar(self._policy, result.observation)
        action = parse_changed_action(self._action, self._policy, grammar)
        own, done = self._steps[self._at], action_fields(action, grammar)
        changed = replace(
            Step(own.trajectory_id, own.step, PERSON, own.thought, memory=own.memory),
            raw_text=format_response(own.thought or "", done["action"]),
            **done,
        )
        after = await bound(env.step(action))
        return [*prefix, PrefixStep(result, changed, after)], after

    def _compare(self, result: StepResult, number: int) -> None:
        """Compare what is seen with what was stored before step `number`. Raises StateNotRestored."""
        known, seen = self._steps[number], result.observation
        if result.terminated or result.truncated:
            raise self._fault(number, "its task is over there already")
        screen = None if seen.screenshot is None else hashlib.sha256(seen.screenshot).hexdigest()
        if screen != known.image_sha256:
            stored, shown = (str(one)[:12] for one in (known.image_sha256, screen))
            raise self._fault(number, f"it was chosen on screen {stored}, and its replay shows {shown}")
        if screen is None and observation_text(seen) != known.observation:
            raise self._fault(number, "the text to read differs")
        score = result.info.get("score")
        if None not in (known.state_score, score) and score != known.state_score:
            raise self._fault(number, "the state's score differs")

    def _fault(self, number: int, why: str) -> StateNotRestored:
        return StateNotRestored(
            f"the state before step {self._at} cannot be restored: at step {number} {why}",
            where=f"trajectory {self.parent_id}",
            fix="its environment is not deterministic, or has changed since",
        )


class _BegunPolicy:
    """Answer as `policy` does, the first answer beginning with a given text; for one episode."""

    def __init__(self, policy: PolicyBackend, begins: str) -> None:
        self._policy, self._begins = policy, begins
        self.encoder = getattr(policy, "encoder", None)

    @property
    def weight_version(self) -> str:
        return self._policy.weight_version

    async def complete(self, context: Context, sampling: SamplingParams) -> Completion:
        begins, self._begins = self._begins, ""
        return await self._policy.complete(context, replace(sampling, begins=begins))


def format_thought(thought: str) -> str:
    """Write the beginning of a model's answer with the given `thought`, `Thought: ...` and the label of the action.

    Raises BadInput for a thought that is empty or has a line break, at its end too.
    """
    if not thought.strip() or thought != " ".join(thought.splitlines()):
        raise BadInput("not one line of text", where="thought", fix="write it as the model does, in one line")
    return format_response(thought.strip(), "")


async def play_counterfactual(
    parent: Trajectory,
    change: CounterfactualChange,
    run: int,
    identity: str,
    start: ReplayedState,
    task: Task,
    policy: PolicyBackend,
    environments: EnvProvider,
    *,
    at: int,
    seed: int,
    iteration: int,
    settings: Settings,
    temperature: float,
) -> Episode:
    """Play one counterfactual episode from the state before step `at` of a stored one, with one thing changed.

    parent: the stored episode's trajectory. change: what is changed; for the kind `model`, `policy` is the other model
    already. run: number of the new episode; those of one number sample with the same seeds whatever is changed, so they
    can be paired. identity: trajectory_id of the new episode. start: brings the environment to that state; shared by
    all episodes with this change. task: of the parent, by which the new episode is judged also where another
    instruction was given. policy, environments, iteration, settings: as for `run_episode_with_retries`. at: number of
    the step, as of `start`. seed: the same for all episodes that are to be compared. temperature: of sampling, unless
    that is what is changed. Its trajectory has the source `counterfactual`, the parent's id, and `start_step` `at`; its
    status is `crashed` where the environment failed in every try. Raises StateNotRestored where the replay shows
    another state; BadInput for a thought that no answer can begin with, ValueError for a temperature that is no number;
    PolicyError, BadInput and DataError as `run_episode_with_retries`.
    """
    shown = replace(task, instruction=change.value) if change.kind == "instruction" else task
    player: Any = _BegunPolicy(policy, format_thought(change.value)) if change.kind == "thought" else policy
    episode = await run_episode_with_retries(
        shown,
        run,
        player,
        environments,
        iteration=iteration,
        settings=settings,
        temperature=float(change.value) if change.kind == "temperature" else temperature,
        seed=derive_seed(COUNTERFACTUAL, parent.trajectory_id, at, seed, run),
        start=start,
    )
    trajectory = replace(
        episode.trajectory, trajectory_id=identity, source=COUNTERFACTUAL, parent_id=parent.trajectory_id, start_step=at
    )
    return replace(
        episode, trajectory=trajectory, steps=tuple(replace(step, trajectory_id=identity) for step in episode.steps)
    )
