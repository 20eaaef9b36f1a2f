"""What the policy is given at a step: P(t_n, a_n | instruction, W_n, o_n, E_n) (section 2.1).

Rollout and training build it here, by the same function, so what is trained on is what was seen.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from flywheel import settings as config
from flywheel.agent.coordinates import smart_resize
from flywheel.agent.grammar import Grammar, response_text
from flywheel.agent.step_history import Memory, remember
from flywheel.agent.steps import PastStep, cut_middle, outcome
from flywheel.agent.templates import instructions, recalled
from flywheel.errors import BadInput
from flywheel.policy.protocol import Context, Image, Message
from flywheel.policy.screens import size_of

_SHORTEST_RESULT = 32  # characters of a tool's result: less of it says nothing


def build_context(
    instruction: str,
    history: Sequence[PastStep] | Memory,
    screenshot: bytes,
    policy: config.Policy,
    count: Callable[[Context], int] | None = None,
) -> Context:
    """The context of one step, of at most `policy.max_context_tokens`.

    history: the past steps, or the memory that a `StepHistory` made of them. count: tokens of a context (an Encoder's);
    without it an upper bound is taken. What does not fit goes in this order: the digest's text (how many steps there
    were is still said), the lines of episodic memory, the steps of working memory, the oldest first; then how many
    steps there were; last, the newest result is shortened. Instruction and screen always stay.

    Raises BadInput for an empty instruction, for a screen that cannot be used, and where instruction and screen do
    not fit by themselves.
    """
    instruction = instruction.strip()
    if not instruction:
        raise BadInput("the instruction is empty", fix="give the task a text")
    screen_size = size_of(screenshot, policy.max_image_side)
    grammar = Grammar.of(policy, screen_size)
    told = instructions(grammar)
    memory = history if isinstance(history, Memory) else remember(history, policy)

    def attempt(kept: Memory) -> tuple[Context, int]:
        context = _render(told, instruction, kept, screenshot, grammar, policy.result_characters)
        return context, upper_bound(context, policy) if count is None else count(context)

    context, tokens = attempt(memory)
    if tokens <= policy.max_context_tokens:
        return context
    smaller = list(_reductions(memory, policy))
    context, tokens = attempt(smaller[-1])
    if tokens > policy.max_context_tokens:
        raise BadInput(
            f"the instruction and one screen take {tokens} tokens",
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
    characters = min(len(memory.result), policy.result_characters) // 2
    while memory.result:
        shorter = cut_middle(memory.result, characters) if characters >= _SHORTEST_RESULT else ""
        yield (memory := replace(memory, result=shorter))
        characters //= 2
    yield Memory()


def _render(
    told: str, task: str, memory: Memory, screenshot: bytes, grammar: Grammar, result_characters: int
) -> Context:
    """told: what a model that does not know its action space is told first; "" for one that does."""
    if memory.before:
        task += f"\nBefore: {memory.before} steps" + (f": {memory.digest}" if memory.digest else ".")
    if memory.episodic:
        task += "\nDone: " + " ".join(memory.episodic)
    messages = [Message("user", (told + task,))] if told else []
    result = ""  # of the step before the one that is written
    for step in memory.working:
        shown = () if step.screenshot is None else (Image(step.screenshot),)
        if result or shown:
            messages.append(Message("user", (*_returned(result, grammar, result_characters), *shown)))
        messages.append(Message("assistant", (response_text(step.thought, recalled(step.action, grammar)),)))
        result = outcome(step)
    returned = _returned(memory.result, grammar, result_characters)
    messages.append(Message("user", (*returned, Image(screenshot), *(() if told else (task,)))))
    return tuple(messages)


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
