"""Build the prompt of a step from the steps before it, the same way for rollouts and training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from flywheel import config
from flywheel.agent.actions import Type
from flywheel.agent.grammar import Grammar, format_response, norm1000_space
from flywheel.agent.history import EpisodeMemory, PastStep, StepHistory, Summarizer
from flywheel.agent.parsing.parser import parse_response
from flywheel.agent.prompt import Context, build_context
from flywheel.store.trajectory import Step


class PromptHistory:
    """Follow one trajectory step by step: for each its context, then the step itself.

    images: PNG by sha256; may grow while the trajectory does. count: tokens of a context (`Encoder.count`), for the
    budget. summarizer: of what is too old for a line; rules where there is none.
    """

    def __init__(
        self,
        instruction: str,
        images: Mapping[str, bytes],
        policy: config.PolicySettings,
        *,
        count: Callable[[Context], int] | None = None,
        summarizer: Summarizer | None = None,
    ) -> None:
        self._instruction, self._images, self._policy, self._count = instruction, images, policy, count
        self._past = StepHistory(policy, summarizer)

    def context(self, screen: bytes | None, stored: str | None = None, *, observation: str | None = None) -> Context:
        """Build what the policy is shown at the next step: the instruction, M_t (section 2.1), and what is seen.

        screen: PNG; None where there is none. stored: the step's `memory`, if it has been taken: its digest is then
        used again. observation: text to read, if any. May wait for a language model; raises BadInput as `build_context`
        does.
        """
        memory = self.memory(stored)
        return build_context(self._instruction, memory, screen, self._policy, self._count, observation=observation)

    def memory(self, stored: str | None = None) -> EpisodeMemory:
        """Return M_t (section 2.1) of the next step, as its context shows it.

        stored: the step's `memory`, if it has been taken: its digest is then used again.
        """
        if stored:
            self._past.recall(**json.loads(stored))
        return self._past.memory()

    @property
    def stored(self) -> str | None:
        """For the step's `memory`: the digest that the newest context was made with, or None without one."""
        digest = self._past.digest
        if not digest.steps:
            return None
        written = json.dumps({"steps": digest.steps, "text": digest.text, "by": digest.by}, ensure_ascii=False)
        return written.encode("utf-8", "replace").decode()  # Parquet takes no half of a surrogate pair

    def add(self, step: Step) -> None:
        """Append the step that was taken."""
        action = step.action or ""
        self._past.add(
            PastStep(
                screenshot=self._images.get(step.image_sha256),
                thought=step.thought or "",
                action=action,
                tool_result=step.tool_result or "",
                action_type=step.action_type or "",
                typed=self._typed(action) if step.action_type == "type" else "",
                url=step.url or "",
                parse_error=step.parse_error or "",
                observation=step.observation,
            )
        )

    def _typed(self, action: str) -> str:
        # What numbers mean does not matter to a text, so any space does.
        grammar = Grammar(self._policy.template, norm1000_space())
        found = parse_response(format_response("", action), grammar).action
        return found.content if isinstance(found, Type) else ""


def build_step_context(
    instruction: str,
    before: Sequence[Step],
    images: Mapping[str, bytes],
    screen: bytes | None,
    policy: config.PolicySettings,
    *,
    observation: str | None = None,
    count: Callable[[Context], int] | None = None,
    summarizer: Summarizer | None = None,
) -> Context:
    """Build the context that follows the steps `before`. For every step of a trajectory, use a `PromptHistory`.

    instruction: the task. before: in their order; [] at the beginning. images: PNG by sha256, of those steps. screen:
    PNG that is seen now; None where there is none. policy: block `policy`. observation: text to read, if any. count:
    tokens of a context (`Encoder.count`); without it an upper bound is taken. summarizer: of what is too old for a
    line; rules where there is none. Raises BadInput as `build_context` does.
    """
    history = PromptHistory(instruction, images, policy, count=count, summarizer=summarizer)
    stored = None
    for step in before:
        history.add(step)
        stored = step.memory or stored
    return history.context(screen, stored, observation=observation)
