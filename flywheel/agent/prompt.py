"""What the policy is given at a step: P(t_n, a_n | instruction, W_n, o_n, E_n) (section 2.1).

Rollout and training build it here, by the same function, so what is trained on is what was seen.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from flywheel import settings as config
from flywheel.agent.context import Context, Image, Message
from flywheel.agent.coordinates import smart_resize
from flywheel.agent.grammar import NO_SCREEN, Grammar, response_text
from flywheel.agent.screens import size_of
from flywheel.agent.step_history import Memory, remember
from flywheel.agent.steps import PastStep, cut_middle, outcome
from flywheel.agent.templates import instructions, recalled
from flywheel.errors import BadInput

_SHORTEST_RESULT = 32  # characters of a tool's result: less of it says nothing


def build_context(
    instruction: str,
    history: Sequence[PastStep] | Memory,
    screenshot: bytes | None,
    policy: config.Policy,
    count: Callable[[Context], int] | None = None,
    *,
    observation: str | None = None,
) -> Context:
    """The context of one step, of at most `policy.max_context_tokens`.

    history: the past steps, or the memory that a `StepHistory` made of them. screenshot: None where there is none to
    see. observation: what is there to read; None where the screen is all. count: tokens of a context (an Encoder's);
    without it an upper bound is taken. What does not fit goes in this order: the digest's text (how many steps there
    were is still said), the lines of episodic memory, the steps of working memory, the oldest first; then how many
    steps there were; then the newest result is shortened, and last the observation. Instruction and screen always stay.

    Raises BadInput for an empty instruction, where there is nothing to see nor to read, for a screen that cannot be
    used, and where instruction and screen do not fit by themselves.
    """
    instruction = instruction.strip()
    if not instruction:
        raise BadInput("the instruction is empty", fix="give the task a text")
    if screenshot is None and observation is None:
        raise BadInput("there is nothing to see and nothing to read", fix="give a screen, or an observation's text")
    screen_size = NO_SCREEN if screenshot is None else size_of(screenshot, policy.max_image_side)
    grammar = Grammar.of(policy, screen_size)
    told = instructions(grammar)
    memory = history if isinstance(history, Memory) else remember(history, policy)
    memory = replace(memory, observation=observation)

    def attempt(kept: Memory) -> tuple[Context, int]:
        context = _render(told, instruction, kept, screenshot, grammar, policy)
        return context, upper_bound(context, policy) if count is None else count(context)

    context, tokens = attempt(memory)
    if tokens <= policy.max_context_tokens:
        return context
    smaller = list(_reductions(memory, policy))
    context, tokens = attempt(smaller[-1])
    if tokens > policy.max_context_tokens:
        raise BadInput(
            f"the instruction and one {'observation' if screenshot is None else 'screen'} take {tokens} tokens",
            where="policy.max_context_tokens",
            fix=f"raise it above {policy.max_context_tokens}",
        )
    # Halving what is left to try: the first of them that fits, in a handful of counts.
    first, last = 0, len(smaller) - 1
    while first < last:
        middle = (first + last) // 2
        found, tokens = attempt(smaller[middle])
        if tokens <= policy.max_context_tokens:
            context, last = found, middle
        else:
            first = middle + 1
    return context


def _reductions(memory: Memory, policy: config.Policy) -> Iterator[Memory]:
    """`memory` with less and less in it, until nothing is left; that at least."""
    if memory.digest:
        yield (memory := replace(memory, digest=""))
    counted = int(policy.digest_characters > 0)  # what is left out is still counted, where a digest is asked for
    while memory.episodic:
        yield (memory := replace(memory, episodic=memory.episodic[1:], before=memory.before + counted))
    while memory.working:
        yield (memory := replace(memory, working=memory.working[1:], before=memory.before + counted))
    if memory.before:
        yield (memory := replace(memory, before=0))
    for shorter in _shorter(memory.result, policy.result_characters):
        yield (memory := replace(memory, result=shorter))
    for shorter in _shorter(memory.observation or "", policy.observation_characters):
        yield (memory := replace(memory, observation=shorter))
    yield Memory(observation=memory.observation)


def _shorter(text: str, characters: int) -> Iterator[str]:
    """Half of what is shown of a text, half of that, and so on to nothing. characters: that are shown at most."""
    characters = min(len(text), characters) // 2
    while text:
        yield (text := cut_middle(text, characters) if characters >= _SHORTEST_RESULT else "")
        characters //= 2


def _render(
    told: str, task: str, memory: Memory, screenshot: bytes | None, grammar: Grammar, policy: config.Policy
) -> Context:
    """told: what a model that does not know its action space is told first; "" for one that does."""
    if memory.before:
        task += f"\nBefore: {memory.before} steps" + (f": {memory.digest}" if memory.digest else ".")
    if memory.episodic:
        task += "\nDone: " + " ".join(memory.episodic)
    messages = [Message("user", (told + task,))] if told else []
    result = ""  # of the step before the one that is written
    for step in memory.working:
        shown = _shown(step.screenshot, step.observation, policy.observation_characters)
        if result or shown:
            messages.append(Message("user", (*_returned(result, grammar, policy.result_characters), *shown)))
        messages.append(Message("assistant", (response_text(step.thought, recalled(step.action, grammar)),)))
        result = outcome(step)
    returned = _returned(memory.result, grammar, policy.result_characters)
    shown = _shown(screenshot, memory.observation, policy.observation_characters)
    messages.append(Message("user", (*returned, *shown, *(() if told else (task,)))))
    return tuple(messages)


def _shown(screenshot: bytes | None, observation: str | None, characters: int) -> tuple[str | Image, ...]:
    """What is seen at a step: a text to read, ahead of the screen; either where the other is all."""
    read = () if observation is None else (f"Observation: {cut_middle(observation.strip(), characters)}\n",)
    return read if screenshot is None else (*read, Image(screenshot))


def _returned(result: str, grammar: Grammar, characters: int) -> tuple[str, ...]:
    """What a step returned, in the form that belongs to the grammar: ahead of the screen that came after it."""
    result = cut_middle(result.strip(), characters)
    if not result:
        return ()
    if grammar.form == "tool_call":
        closed = result.replace("</tool_response>", "< /tool_response>")  # it ends where we say
        return (f"<tool_response>\n{closed}\n</tool_response>\n",)
    return (f"Result: {result}\n",)


def upper_bound(context: Context, policy: config.Policy | None = None) -> int:
    """No fewer tokens than a byte-level tokeniser in Qwen's chat form makes of the context.

    A token for each byte of text, 8 a message for the form, 24 for a system message that it may add, and for each
    screen those of the image that `policy.resize_factor`, `min_pixels` and `max_pixels` resize it to; their defaults
    are no less than those of the embedded model, Qwen2-VL, Qwen2.5-VL and Qwen3-VL.
    """
    policy = policy or config.Policy()
    total = 32
    for message in context:
        total += 8
        for part in message.parts:
            total += 2 + _image_tokens(part.png, policy) if isinstance(part, Image) else _bytes(part)
    return total


def _bytes(text: str) -> int:
    """Bytes of the text as it will be tokenised: normalised, its control tokens broken up."""
    forms = (text, unicodedata.normalize("NFC", text))
    return max(len(form.encode("utf-8", "replace")) for form in forms) + text.count("<|")


def _image_tokens(png: bytes, policy: config.Policy) -> int:
    factor = policy.resize_factor
    width, height = smart_resize(*size_of(png, policy.max_image_side), factor, policy.min_pixels, policy.max_pixels)
    return (width // factor) * (height // factor)
