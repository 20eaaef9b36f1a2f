"""What the policy is given at a step: P(t_n, a_n | instruction, W_n, o_n, E_n) (section 2.1).

Rollout and training build it here, by the same function, so what is trained on is what was seen.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from PIL import Image as Picture

from flywheel import settings as config
from flywheel.agent.memory import Memory, PastStep, remember
from flywheel.errors import BadInput
from flywheel.policy.protocol import Context, Image, Message

# The embedded model knows its action space from training and pays for each token; others are told.
UI_TARS = """You are a GUI agent. You are given a task and your action history, with screenshots. Perform the next \
action to complete the task.

## Output Format
Thought: ...
Action: ...

## Action Space
click(point='<point>x y</point>')
left_double(point='<point>x y</point>')
right_single(point='<point>x y</point>')
drag(start_point='<point>x1 y1</point>', end_point='<point>x2 y2</point>')
hotkey(key='ctrl c')
press(key='left')
release(key='left')
type(content='xxx')
scroll(point='<point>x y</point>', direction='down or up or right or left')
navigate(content='address')
navigate_back()
wait()
finished(content='xxx')
call_user()

Points count from 0 to {last} over the screen's width and height.

## User Instruction
"""


def build_context(
    instruction: str,
    history: Sequence[PastStep],
    screenshot: bytes,
    policy: config.Policy,
    count: Callable[[Context], int] | None = None,
) -> Context:
    """The context of one step, of at most `policy.max_context_tokens`, the oldest memory dropped first.

    count: tokens of a context (an Encoder's); without it an upper bound is taken: a token for each byte of text,
    and Qwen's 32 x 32 pixels to an image token. Raises BadInput for an empty instruction, and for one that does
    not fit even without any memory.
    """
    instruction = instruction.strip()
    if not instruction:
        raise BadInput("the instruction is empty", fix="give the task a text")
    count = count or upper_bound
    memory = remember(history, working_steps=policy.working_steps, episodic_steps=policy.episodic_steps)
    while True:
        context = _render(instruction, memory, screenshot, policy)
        if count(context) <= policy.max_context_tokens:
            return context
        if memory.episodic:
            memory = Memory(memory.working, memory.episodic[1:])
        elif memory.working:
            memory = Memory(memory.working[1:], ())
        else:
            raise BadInput(
                f"the instruction and one screen take {count(context)} tokens",
                where="policy.max_context_tokens", fix=f"raise it above {policy.max_context_tokens}",
            )  # fmt: skip


def _render(instruction: str, memory: Memory, screenshot: bytes, policy: config.Policy) -> Context:
    task = instruction
    if memory.episodic:
        task += "\nDone: " + " ".join(memory.episodic)
    messages: list[Message] = []
    if policy.template == "ui_tars":
        messages.append(Message("user", (UI_TARS.format(last=policy.coordinates - 1) + task,)))
    for step in memory.working:
        if step.screenshot is not None:
            messages.append(Message("user", (Image(step.screenshot),)))
        messages.append(Message("assistant", (response_text(step.thought, step.action),)))
    ending = (task,) if policy.template == "minimal" else ()
    messages.append(Message("user", (Image(screenshot), *ending)))
    return tuple(messages)


def response_text(thought: str, action: str) -> str:
    """A step as the model writes it; `action` is serialised."""
    return f"Thought: {thought}\nAction: {action}"


def upper_bound(context: Context) -> int:
    """No fewer tokens than any byte-level tokeniser makes of the context, with 8 a message for the chat form."""
    total = 8
    for message in context:
        total += 8
        for part in message.parts:
            total += 2 + _image_tokens(part.png) if isinstance(part, Image) else len(part.encode())
    return total


def _image_tokens(png: bytes) -> int:
    try:
        with Picture.open(io.BytesIO(png)) as picture:
            width, height = picture.size
    except Exception as error:  # PIL raises many kinds for a broken file
        raise BadInput(f"the screen is not an image: {error}", where="policy context") from None
    return -(-width // 32) * -(-height // 32)
