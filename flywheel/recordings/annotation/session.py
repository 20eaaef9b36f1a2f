"""Annotate the newest model's rollout while it is played (UI-TARS-2 report, section 2.4.2).

At each step the model proposes a few distinct thoughts and actions; the annotator accepts one, or does something better
in its place. What is accepted keeps its tokens and log-probabilities as sampled, so that it is on-policy as a rollout's
steps are. This is the session itself, without a page or a server around it (`flywheel/ui/annotate`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flywheel.agent.actions import Action, Finished, ParsedResponse, ParseError, replace_surrogates
from flywheel.agent.grammar import Grammar, format_response, grammar_without_thinking
from flywheel.agent.parsing.parser import action_fields, parse_response
from flywheel.agent.prompt import Context
from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.base import Checkpointable, Env, StepResult, Task, Verdict
from flywheel.envs.remote.node_session import PlayedStep
from flywheel.envs.tasks.drawing import task_to_row
from flywheel.policy.client.language_model import open_summarizer
from flywheel.policy.protocol import Completion, PolicyBackend, SamplingParams
from flywheel.recordings.annotation.distinct import have_the_same_effect, hits_an_element
from flywheel.recordings.annotation.journal import JOURNAL_VERSION, AnnotationJournal, AnnotationState
from flywheel.recordings.annotation.overrides import word_thought
from flywheel.recordings.rows import HUMAN
from flywheel.rollout.episode import (
    PromptHistory,
    await_within,
    derive_seed,
    describe_model_step,
    final_state_json,
    observation_grammar,
    observation_text,
)
from flywheel.utils.errors import BadInput, DataError, EnvTimeout, PolicyError, PolicyTimeout

MODEL = "model"  # author of its steps
_BARREN_ROUNDS = 2  # rounds of answers without another action, after which the model has no other
_MAX_CHECKPOINTS = 64  # newest steps that an undo restores by checkpoint; older ones by replay
T = TypeVar("T")


@dataclass(frozen=True)
class Candidate:
    """Hold one proposal of the model for the next step.

    number: among the proposals for this step. action: parsed. chosen: fields of the row of `steps` that it would be.
    votes: how many of the model's `samples` answers have the same effect. undone: it was accepted, and then undone.
    """

    number: int
    action: Action
    chosen: Mapping[str, Any]
    votes: int
    samples: int
    undone: bool = False

    @property
    def thought(self) -> str:
        """Return the proposal's thought; "" where the model gave none."""
        return self.chosen["thought"]


class ReplayDiffers(DataError):
    """Signal that a step that was carried out again does not show the screen that was stored."""


class AnnotationSession:
    """Run one episode that a person and a model play together, step by step.

    One call at a time. PolicyError leaves all as it was, but for the steps that `play` has played. After EnvError or
    DiskFull what the journal has stands, and `revive` goes on in a fresh environment: it carries out a decision whose
    result is not known.
    """

    def __init__(self, env: Env, policy: PolicyBackend | None, settings: Settings, journal: AnnotationJournal) -> None:
        """Make a session for `begin`, `resume` and `take_over`, which callers use.

        policy: proposes; None: no model does. journal: of the session, whose `state` is the session's.
        """
        self._env, self._policy, self._settings, self._journal = env, policy, settings, journal
        self.result: StepResult | None = None  # the newest of the environment
        self._images: dict[str, bytes] = {}
        self._checkpoints: dict[int, bytes] = {}  # before step -> state
        self._task: Task | None = None

    @classmethod
    async def begin(
        cls,
        env: Env,
        task: Task,
        policy: PolicyBackend,
        settings: Settings,
        folder: Path,
        *,
        annotator: str,
        iteration: int = 0,
        model: str = "",
        drawn_for: str = "",
    ) -> AnnotationSession:
        """Begin a session of `task` in a fresh environment. It keeps the weights that the policy has now.

        env: leased for the task; the caller keeps it open. folder: of the journal, new. annotator: the person's key, as
        stored. iteration: that made the proposing model. model: its name. drawn_for: why the task was drawn (column of
        `tasks`). Raises EnvError and BadInput as `reset`, DiskFull.
        """
        session = cls(env, policy, settings, AnnotationJournal(folder))
        try:
            session._journal.append(
                "begun",
                version=JOURNAL_VERSION,
                session=folder.name,
                task={**task_to_row(task), "drawn_for": drawn_for or None},
                annotator=annotator,
                iteration=iteration,
                model=model,
                weights=policy.weight_version,
            )
            session._task = task
            session._show(await session._call(env.reset(task, task.seed)))
            session._journal.append_seen(session.result)
            session._remember()
        except BaseException:
            session.close()
            raise
        return session

    @classmethod
    async def resume(cls, env: Env, policy: PolicyBackend, settings: Settings, folder: Path) -> AnnotationSession:
        """Resume a session that was left: its steps are carried out again, and their screens compared.

        Arguments as for `begin`. Raises DataError for a damaged or finished journal, PolicyError where the policy has
        other weights than the session began with (one that was taken over goes on without proposals then),
        ReplayDiffers where an environment with exact state shows another screen, EnvError, DiskFull.
        """
        session = cls(env, policy, settings, AnnotationJournal.reopen(folder))
        try:
            session._task = session.state.task
            if not session.state.begun.get("taken_over"):
                session._check_weights(policy.weight_version)
            elif policy.weight_version != session.state.begun["weights"]:
                session._policy = None
            await session._replay()
        except BaseException:
            session.close()
            raise
        return session

    @classmethod
    async def take_over(
        cls, env: Env, task: Task, episode: Sequence[PlayedStep], settings: Settings, folder: Path, *, annotator: str
    ) -> AnnotationSession:
        """Take over by hand an episode that a model has begun in `env`; no model proposes before the session is
        resumed.

        `resume` with a policy of the weights that played the episode lets it propose again. task: the episode's.
        episode: its steps, the reset first, which are journalled as played by a model alone. Other arguments as for
        `begin`. Raises BadInput for a task of evaluation, DiskFull.
        """
        refuse_evaluation_task(task)
        session = cls(env, None, settings, AnnotationJournal(folder))
        try:
            said = [one for step in episode for one in step.said]
            session._journal.append(
                "begun",
                version=JOURNAL_VERSION,
                session=folder.name,
                task={**task_to_row(task), "drawn_for": None},
                annotator=annotator,
                iteration=0,
                model="",
                weights=said[-1]["weight_version"] if said else "",
                taken_over=True,
            )
            session._task = task
            session._show(episode[0].result)
            session._journal.append_seen(session.result)
            session._remember()
            for step in episode[1:]:
                session._follow(step)
        except BaseException:
            session.close()
            raise
        return session

    def _follow(self, step: PlayedStep) -> None:
        """Journal a step that was played before the session was taken over, with the texts before it that held none."""
        *broken, last = step.said or [self._unsaid(step.action)]
        for chosen, after in [*((one, None) for one in broken), (last, step.result)]:
            number = self.steps
            row = {"chosen": dict(chosen), "votes": 1}
            self._journal.append("proposed", step=number, samples=1, candidates=[row])
            candidate = self.state.candidates_of(number)[-1]["number"]
            memory = self._history.stored
            self._journal.append("chose", step=number, chosen=dict(chosen), candidate=candidate, by="", memory=memory)
            self._show(after or self._result_without_action())
            self._journal.append_seen(self.result)
            self._history.add(self._step(number))

    def _unsaid(self, action: Action) -> dict[str, Any]:
        """Return the fields of a step whose player announced nothing: an action without words."""
        done = action_fields(action, grammar_without_thinking(self._grammar()))
        return {"author": MODEL, "thought": "", "raw_text": format_response("", done["action"]), **done}

    # -- what there is ----------------------------------------------------------------------------------------------
    @property
    def state(self) -> AnnotationState:
        """Return the state that the journal's lines add up to."""
        return self._journal.state

    @property
    def task(self) -> Task:
        """Return the task that is annotated."""
        return self._task

    @property
    def name(self) -> str:
        """Return the session's name, that of its folder."""
        return self._journal.folder.name

    @property
    def steps(self) -> int:
        """Return the number of steps that were taken and not undone."""
        return len(self.state.steps)

    @property
    def proposes(self) -> bool:
        """Tell whether a model proposes in the session; after `take_over` none does until it is resumed."""
        return self._policy is not None

    @property
    def over(self) -> bool:
        """Tell whether the episode has ended, or its step budget is spent; `undo` and `finish` still work."""
        return bool(self.result.terminated or self.result.truncated or self.steps >= self.task.max_steps)

    @property
    def verdict(self) -> Verdict:
        """Return the verifier's verdict on the newest state; without a verifier it has no score."""
        score = self.result.info.get("score") if self.task.verifier else None
        return Verdict(score, self.task.threshold, self.task.verifier)

    @property
    def elements(self) -> Sequence[Mapping[str, Any]]:
        """Return the named elements of the screen, with their boxes; () where the environment does not tell them."""
        state = self.result.info.get("state")
        return state.get("elements", ()) if isinstance(state, Mapping) else ()

    @property
    def candidates(self) -> list[Candidate]:
        """Return the proposals for the next step so far, in the order of their numbers."""
        grammar = self._grammar()
        return [
            Candidate(
                one["number"],
                parse_response(one["chosen"]["raw_text"], grammar).action,
                one["chosen"],
                one["votes"],
                one["samples"],
                one.get("undone", False),
            )
            for one in self.state.candidates_of(self.steps)
        ]

    # -- the model's part -------------------------------------------------------------------------------------------
    async def propose(self, count: int | None = None, *, more: bool = False) -> list[Candidate]:
        """Ask the model to propose the next step; a second call returns the same proposals.

        count: of distinct candidates, at most; None: `annotation.candidates`. Answers that have the same effect
        (`have_the_same_effect`), such as clicks on one element, are one candidate, with the votes of all. The model
        is asked `count` times at once, up to `annotation.max_samples` times a call (`count` times where that is more),
        and there are fewer candidates where it says the same again and again. more: add up to `count` others. Returns
        the candidates, the most frequent first. Raises PolicyError, BadInput where the episode is over, the step was
        decided meanwhile or the screen cannot be shown, DiskFull.
        """
        self._check_open()
        self._check_policy()
        known = self.candidates
        if known and not more:
            return known
        rules = self._settings.annotation
        count, number, context = count or rules.candidates, self.steps, await self._context()
        groups = [[one.action, None, 0] for one in known]
        first = asked = self.state.samples[number]
        most, barren = max(rules.max_samples, count), 0
        # In rounds of `count`: ten annotators share one processor's time, and three answers often are three actions.
        while asked - first < most and len(groups) < len(known) + count and barren < _BARREN_ROUNDS:
            many, before = min(count, most - (asked - first)), len(groups)
            said = await asyncio.gather(
                *(self._sample(context, asked + sample) for sample in range(many)), return_exceptions=True
            )
            answers = [one for one in said if isinstance(one, Completion)]
            if not answers:
                raise next(one for one in said if isinstance(one, BaseException))
            asked += many
            self._group(groups, answers)
            barren = barren + 1 if len(groups) == before else 0
        found = sorted((one for one in groups if one[1] is not None), key=lambda one: -one[2])[:count]
        if number != self.steps or self._journal.state.ended:
            raise BadInput("the step was decided meanwhile", where=self.name)
        rows = [{"chosen": chosen, "votes": votes} for _, chosen, votes in found]
        self._journal.append("proposed", step=number, samples=asked - first, candidates=rows)
        return self.candidates

    def _group(self, groups: list[list[Any]], answers: Sequence[Completion]) -> None:
        grammar, elements = self._grammar(), self.elements
        for completion in answers:
            parsed = parse_response(completion.text, grammar)
            if isinstance(parsed.action, ParseError):
                continue
            for group in groups:
                if have_the_same_effect(parsed.action, group[0], elements):
                    if group[1] is not None and hits_an_element(parsed.action, elements) > hits_an_element(
                        group[0], elements
                    ):  # of answers that mean one element, one that hits it is shown
                        group[:2] = parsed.action, self._chosen(completion, parsed)
                    group[2] += 1
                    break
            else:
                groups.append([parsed.action, self._chosen(completion, parsed), 1])

    async def play(self, count: int) -> int:
        """Let the model play `count` steps, each as in a rollout, or up to the end; return how many it played.

        Raises PolicyError, EnvError, DiskFull; the steps before stand.
        """
        self._check_policy()
        for played in range(count):
            if self.over:
                return played
            number = self.steps
            completion = await self._sample(await self._context(), self.state.samples[number])
            parsed = parse_response(completion.text, self._grammar())
            chosen = self._chosen(completion, parsed)
            row = {"chosen": chosen, "votes": 1}
            self._journal.append("proposed", step=number, samples=1, candidates=[row])
            candidate = self.state.candidates_of(number)[-1]["number"]
            action = None if isinstance(parsed.action, ParseError) else parsed.action
            await self._take(chosen, action, candidate, by="")
        return count

    # -- the person's part ------------------------------------------------------------------------------------------
    async def accept(self, number: int) -> StepResult:
        """Take the candidate `number` as the next step, and carry it out.

        Raises BadInput where there is none or the episode is over, EnvError, DiskFull.
        """
        self._check_open()
        found = next((one for one in self.candidates if one.number == number), None)
        if found is None:
            raise BadInput(f"there is no candidate {number} here", where=self.name, fix="choose one that is shown")
        return await self._take(found.chosen, found.action, number, by=self.annotator)

    async def override(self, action: Action, thought: str = "") -> StepResult:
        """Take a step of the person's own. thought: why; "" is worded by rules (`word_thought`).

        Points are snapped to what the model could write. Raises BadInput as `read_override`, and where the episode is
        over; EnvError, DiskFull.
        """
        self._check_open()
        chosen, action = self.read_override(action, thought)
        return await self._take(chosen, action, None, by=self.annotator)

    def read_override(self, action: Action, thought: str = "") -> tuple[dict[str, Any], Action]:
        """Return the fields of the step that `override` would take, and the action as the model's grammar writes it.

        Raises BadInput where the grammar cannot write it, or it would not be read after the thought.
        """
        grammar = grammar_without_thinking(self._grammar())
        said = replace_surrogates(action_fields(action, grammar)["action"])  # files take no lone ones
        written = parse_response(format_response("", said), grammar).action
        if isinstance(written, ParseError):
            fix = "do something else"
            raise BadInput(f"the grammar cannot write this action: {written.reason}", where=self.name, fix=fix)
        thought = replace_surrogates(" ".join(thought.split())) or word_thought(written, self.elements)
        done = action_fields(written, grammar)
        text = format_response(thought, done["action"])
        if parse_response(text, grammar).action != written:
            what, fix = "the action would not be read after this thought", "leave tags such as <think> out"
            raise BadInput(what, where=self.name, fix=fix)
        return {"author": HUMAN, "thought": thought, "raw_text": text, "weight_version": HUMAN, **done}, written

    def read_action(self, text: str) -> Action:
        """Parse an action as the grammar writes it, such as `wait()`. Raises BadInput that says what is wrong."""
        parsed = parse_response(format_response("", text.strip()), grammar_without_thinking(self._grammar()))
        if isinstance(parsed.action, ParseError):
            raise BadInput(f"not an action: {parsed.action.reason}", where="action", fix="for example wait()")
        return parsed.action

    async def undo(self) -> StepResult:
        """Take the last step back: by the checkpoint before it, else by carrying the earlier ones out again.

        Raises BadInput before the first step and after `finish`, ReplayDiffers and EnvError as `revive`, DiskFull.
        """
        if not self.steps or self.state.ended:
            raise BadInput("there is no step to undo", where=self.name)
        number = self.steps - 1
        self._journal.append("undone", step=number)
        self._checkpoints = {before: kept for before, kept in self._checkpoints.items() if before <= number}
        kept = self._checkpoints.get(number)
        if kept is not None:
            self._show(await self._call(self._env.restore(kept), times=2 + number))
            if _screen_sha256(self.result) == self.state.seen[number]["screen"]:
                self._remember()
                return self.result
        await self._replay()
        return self.result

    async def finish(self, answer: str = "", thought: str = "", *, ask: bool = False) -> Verdict:
        """End the session, and close it, for the next iteration to take in. Returns the verifier's verdict.

        Where the episode is not over, the person says that the task is done, with the `answer` where one is asked for.
        ask: where the verifier then calls it unsolved, the session stays open, to undo the end or to call again.
        Raises BadInput for an answer that cannot be written, EnvError, DiskFull.
        """
        if not self.over:
            await self.override(Finished(answer), thought)
            if ask and self.over and self.verdict.v is False:
                return self.verdict
        verdict = self.verdict
        self._journal.append(
            "finished",
            status="completed" if self.result.terminated else "truncated",
            score=verdict.score,
            final_state=final_state_json(self.result),
        )
        self.close()
        return verdict

    def skip(self) -> None:
        """Record that the annotator does not want to go on: the session is not offered again. Raises DiskFull."""
        self._journal.append("skipped")

    def close(self) -> None:
        """Close the journal. What was decided stays; without an end, the session can be resumed."""
        self._journal.close()

    async def revive(self, env: Env) -> StepResult:
        """Go on in another environment after one was lost: all steps are carried out again, the last decision too.

        Raises ReplayDiffers where an environment with exact state shows another screen than before, EnvError, DiskFull.
        """
        self._env, self._checkpoints = env, {}
        await self._replay()
        return self.result

    @property
    def annotator(self) -> str:
        """Return the name of who annotates."""
        return self.state.begun["annotator"]

    # -- inside -----------------------------------------------------------------------------------------------------
    async def _take(
        self, chosen: Mapping[str, Any], action: Action | None, candidate: int | None, by: str
    ) -> StepResult:
        """Write the decision, carry it out, write what followed. action: None where the model's text holds none."""
        number = self.steps
        if action is not None and isinstance(self._env, Checkpointable):
            self._checkpoints[number] = await self._call(self._env.checkpoint())
            self._checkpoints.pop(number - _MAX_CHECKPOINTS, None)
        memory = self._history.stored
        self._journal.append("chose", step=number, chosen=dict(chosen), candidate=candidate, by=by, memory=memory)
        await self._carry_out(action)
        return self.result

    async def _carry_out(self, action: Action | None) -> None:
        """Carry out the last decision, whose result is not known yet. action: None: none."""
        after = self._result_without_action() if action is None else await self._call(self._env.step(action))
        self._show(after)
        self._journal.append_seen(after)
        self._history.add(self._step(self.steps - 1))

    def _result_without_action(self) -> StepResult:
        info = {name: value for name, value in self.result.info.items() if name not in ("note", "result")}
        return StepResult(self.result.observation, info=info)

    async def _replay(self) -> None:
        """Carry all steps out again from the reset, compare the screens, and carry out what was decided last."""
        exact = isinstance(self._env, Checkpointable)
        self._checkpoints = {}
        result = await self._call(self._env.reset(self.task, self.task.seed))
        self._show(result)
        if not self.state.seen:  # killed before the first screen was written
            self._journal.append_seen(result)
        self._check_screen(0, exact)
        for number, line in enumerate(self.state.steps):
            action = self._action_of(line)
            if number + 1 == len(self.state.seen):
                self._remember(number)
                await self._carry_out(action)
                return
            if action is not None:
                self._show(await self._call(self._env.step(action)))
                self._check_screen(number + 1, exact)
        if self.state.steps and self._action_of(self.state.steps[-1]) is None:
            self._show(self._result_without_action())
        self._remember()

    def _action_of(self, line: Mapping[str, Any]) -> Action | None:
        if line["chosen"].get("action") is None:
            return None
        grammar = grammar_without_thinking(self._grammar())
        parsed = parse_response(format_response("", line["chosen"]["action"]), grammar)
        return None if isinstance(parsed.action, ParseError) else parsed.action

    def _check_screen(self, number: int, exact: bool) -> None:
        if exact and _screen_sha256(self.result) != self.state.seen[number]["screen"]:
            raise ReplayDiffers(
                f"before step {number} another screen is shown than when it was annotated",
                where=f"session {self.name}",
                fix="its environment has changed since: begin another; what was decided stays in its folder",
            )

    def _remember(self, steps: int | None = None) -> None:
        """Make the history of prompts anew, of the first `steps` steps; None: of all."""
        self._history = PromptHistory(
            self.task.instruction,
            self._images,
            self._settings.policy,
            count=encoder.count if (encoder := getattr(self._policy, "encoder", None)) else None,
            summarizer=open_summarizer(self._settings),
        )
        self._history.follow(self._step(number) for number in range(self.steps if steps is None else steps))

    def _step(self, number: int):
        step = self.state.step(number, self.name)
        if step.image_sha256 is not None and step.image_sha256 not in self._images:
            self._images[step.image_sha256] = self._journal.screen_path(step.image_sha256).read_bytes()
        return step

    def _show(self, result: StepResult) -> None:
        self.result = result
        if result.observation.screenshot is not None:
            self._images[_screen_sha256(result)] = result.observation.screenshot

    async def _context(self) -> Context:
        seen = self.result.observation
        # In a thread: tokens are counted, and a language model may be asked for a digest.
        return await asyncio.to_thread(self._history.context, seen.screenshot, observation=observation_text(seen))

    async def _sample(self, context: Context, sample: int) -> Completion:
        rules = self._settings
        seed = derive_seed(self.name, self.steps, sample)
        sampling = SamplingParams(
            rules.rollout.temperature, rules.policy.max_new_tokens, seed, action=True, session=self.name
        )
        limit_s = 2 * rules.policy.timeout_s
        late = PolicyTimeout(f"the policy did not answer in {limit_s:g} s", where=self.name)
        completion = await await_within(limit_s, self._policy.complete(context, sampling), late)
        self._check_weights(completion.weight_version)
        return completion

    def _check_policy(self) -> None:
        if not self.proposes:
            what, fix = "no model proposes in a session that was taken over", "do each step yourself"
            raise PolicyError(what, where=f"session {self.name}", fix=fix)

    def _check_weights(self, found: str) -> None:
        if found != (begun := self.state.begun["weights"]):
            raise PolicyError(
                f"the policy has the weights {found[:12]} now, and the session began with {begun[:12]}",
                where=f"session {self.name}",
                fix="finish it by hand, or begin another",
            )

    def _chosen(self, completion: Completion, parsed: ParsedResponse) -> dict[str, Any]:
        """Return the fields of a step that the model chose, as a rollout stores them."""
        return describe_model_step(completion, parsed, self._grammar())

    def _grammar(self) -> Grammar:
        return observation_grammar(self._settings.policy, self.result.observation)

    def _check_open(self) -> None:
        if self.over or self.state.ended:
            raise BadInput("the episode is over", where=self.name, fix="finish it, or undo the last step")

    async def _call(self, call: Awaitable[T], times: int = 1) -> T:
        limit_s = 2 * times * registry.find_backend(self.task.environment).limits(self._settings).call_s
        late = EnvTimeout(f"the environment did not answer in {limit_s:g} s", where=f"task {self.task.task_id}")
        return await await_within(limit_s, call, late)


def refuse_evaluation_task(task: Task) -> None:
    """Raise BadInput for a task that models are evaluated by: what people do in it must not be trained on."""
    if task.split != "train":
        what = f"the task is of the split {task.split}, which is evaluated and never trained on"
        raise BadInput(what, where=f"task {task.task_id}", fix="watch it, without taking it over as data")


def _screen_sha256(result: StepResult) -> str | None:
    screen = result.observation.screenshot
    return None if screen is None else hashlib.sha256(screen).hexdigest()
