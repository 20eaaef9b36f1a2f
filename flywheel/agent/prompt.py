"""Build the prompt of a step, for rollout and training alike, and decode its screens.

It is the condition of P(t_n, a_n | instruction, W_n, o_n, E_n) in the UI-TARS-2 report, section 2.1.
"""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
import yaml
from PIL import Image as Picture

from flywheel import config
from flywheel.agent.grammar import MAX_RATIO, NO_SCREEN, Grammar, format_response, smart_resize
from flywheel.agent.history import EpisodeMemory, PastStep, build_memory, format_outcome, truncate_middle
from flywheel.utils.errors import BadInput

MAX_SIDE = 4096  # the default of policy.max_image_side
_WHERE = "policy context"


def screenshot_size(data: bytes, max_side: int = MAX_SIDE) -> tuple[int, int]:
    """Read (width, height) in pixels from the header of a picture; its pixels may still be broken.

    data: the file's bytes. max_side: longest side that is allowed, in pixels. Raises BadInput for an empty file, one
    that is no image, a longer side, more pixels than PIL opens (179 million), and a picture narrower than 1 : 200.
    """
    with _opened(data, max_side) as picture:
        return picture.size


def decode_screenshot(data: bytes, max_side: int = MAX_SIDE) -> Picture.Image:
    """Decode a picture to RGB, 8 bits a channel. What is transparent lies on white, as on a browser's page.

    data: the file's bytes, PNG, JPEG or another format that PIL reads. max_side: longest side that is allowed, in
    pixels. Raises BadInput as `screenshot_size`, and for a file that is cut off or broken.
    """
    picture = _opened(data, max_side)
    try:
        picture.load()
        return _rgb(picture)
    except Exception as error:  # PIL's decoders raise many kinds for a broken file
        raise BadInput(f"the screen is cut off or broken: {_line(error)}", where=_WHERE) from None


def _opened(data: bytes, max_side: int) -> Picture.Image:
    if not data:
        raise BadInput("the screen is empty: 0 bytes", where=_WHERE)
    try:
        picture = Picture.open(io.BytesIO(data))
    except Picture.DecompressionBombError:
        raise BadInput("the screen is too large", where=_WHERE, fix=_smaller(max_side)) from None
    except Picture.UnidentifiedImageError:
        raise BadInput("the screen is not an image", where=_WHERE, fix="give a PNG or a JPEG") from None
    except Exception as error:  # other errors of a broken header
        raise BadInput(f"the screen is not an image: {_line(error)}", where=_WHERE, fix="give a PNG") from None
    width, height = picture.size
    if max(width, height) > max_side:
        raise BadInput(f"the screen is too large: {width} x {height} pixels", where=_WHERE, fix=_smaller(max_side))
    if max(width, height) > MAX_RATIO * min(width, height):
        fix = f"its longer side may have {MAX_RATIO} times the pixels of the shorter one"
        raise BadInput(f"the screen is too narrow: {width} x {height} pixels", where=_WHERE, fix=fix)
    return picture


def _rgb(picture: Picture.Image) -> Picture.Image:
    if picture.mode.startswith("I"):  # 16 bits of grey; PIL's own conversion cuts off all above 255
        grey = np.asarray(picture).astype(np.int64).clip(0, 65_535) // 257
        return Picture.fromarray(grey.astype(np.uint8)).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        page = Picture.new("RGBA", layer.size, "white")
        return Picture.alpha_composite(page, layer).convert("RGB")
    return picture.convert("RGB")


def _smaller(max_side: int) -> str:
    return f"policy.max_image_side is {max_side}: raise it, or take smaller screens"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


@dataclass(frozen=True)
class Image:
    """Hold a screen as the bytes of a PNG."""

    png: bytes


@dataclass(frozen=True)
class Message:
    """Hold one message of a prompt. role: system, user or assistant. parts: texts and images in reading order."""

    role: str
    parts: tuple[str | Image, ...]


Context = tuple[Message, ...]


_WORDS = yaml.safe_load(resources.files("flywheel.agent").joinpath("prompt.yaml").read_text("utf-8"))
ACTION_SPACES = {name: tuple(actions.split()) for name, actions in _WORDS["action_spaces"].items()}
SDK_FUNCTIONS = tuple(_WORDS["sdk_functions"].split())


@lru_cache(maxsize=64)
def format_instructions(grammar: Grammar) -> str:
    """Write the instructions that precede the task in the prompt: the actions, and how to write them.

    It is "" for a model that knows its actions from training (form minimal).
    """
    if grammar.form == "minimal":
        return ""
    if grammar.form == "tool_call":
        signatures = [_screen_tool(grammar), *(_WORDS["function_tools"] if grammar.functions else ())]
        return _WORDS["tools"].format(signatures="\n".join(json.dumps(_signature(*one)) for one in signatures))
    return _WORDS["calls"].format(lines="\n".join(list_action_signatures(grammar)), numbers=_numbers(grammar))


def list_action_signatures(grammar: Grammar) -> list[str]:
    """List an example call of each action that the grammar offers, a line each; some end with a comment (`  # ...`).

    First come the actions of its action space, in their order, then, where it has functions, the SDK functions. Places
    are points in the forms `point` and `minimal`, boxes in all others; for `tool_call`, whose JSON calls
    `format_instructions` describes, the lines are not what the model writes.
    """
    names = ACTION_SPACES[grammar.actions] + (SDK_FUNCTIONS if grammar.functions else ())
    places = _WORDS["point_places" if grammar.form in ("minimal", "point") else "box_places"]
    return [_WORDS["lines"][name].format(**places) for name in names]


def restore_box_tokens(action: str, grammar: Grammar) -> str:
    """Return a past action's text with the special tokens of UI-TARS 1.5 put back, for the history in its prompt.

    The model marks its boxes with them. Servers leave them out of their responses, so the stored text has none
    (bytedance/UI-TARS, README_deploy.md puts them back in the same way). In other forms the text stays as it is.
    """
    if grammar.form != "ui_tars_1_5":
        return action
    return _BOX.sub(r"\1'<|box_start|>\2<|box_end|>'", action)


_BOX = re.compile(r"((?:start|end)_box=)'(\(\d+,\d+\))'")


def _numbers(grammar: Grammar) -> str:
    if grammar.space.kind == "norm1":
        return "Points are fractions of the screen's width and height, 0 to 1, with four digits."
    if grammar.space.kind == "pixels":
        return "Points are pixels of the screenshot, counted from its upper left corner."
    return f"Points count from 0 to {grammar.space.x.last} over the screen's width and height."


def _screen_tool(grammar: Grammar) -> tuple[str, str, dict[str, Any], list[str]]:
    mobile = grammar.actions == "mobile"
    actions = _WORDS["tool_actions"][grammar.actions].split()
    size = "{}x{}".format(*grammar.space.size)
    scale = _numbers(grammar) if grammar.space.kind == "norm1" else f"The screen's resolution is {size}."
    what = "Touch a phone's screen." if mobile else "Use the mouse and the keyboard."
    about = "\n".join(f"* `{action}`: {_WORDS['about'][action]}." for action in actions)
    needed_by = _WORDS["needed_by"]
    options = {
        name: one for name, one in _WORDS["options"].items() if name not in needed_by or needed_by[name] in actions
    }
    action = {"type": "string", "enum": actions, "description": about}
    description = f"{what} {scale} Point at the middle of an element."
    return "mobile_use" if mobile else "computer_use", description, {"action": action, **options}, ["action"]


def _signature(name: str, about: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


_SHORTEST_RESULT = 32  # characters of a tool's result: a shorter one is useless


def build_context(
    instruction: str,
    history: Sequence[PastStep] | EpisodeMemory,
    screenshot: bytes | None,
    policy: config.PolicySettings,
    count: Callable[[Context], int] | None = None,
    *,
    observation: str | None = None,
) -> Context:
    """Build the context (the prompt) of one step, of at most `policy.max_context_tokens` tokens.

    instruction: the task. history: the past steps, or the memory that a `StepHistory` made of them. screenshot: PNG;
    None where there is none. policy: block `policy`. count: counts the tokens of a context (an Encoder's method);
    without it an upper bound is used. observation: text for the policy to read; None where the screen is all.

    What does not fit is left out in this order: the digest's text (the number of its steps stays), the lines of
    episodic memory, the steps of working memory, the oldest first; then the number of earlier steps. Then the newest
    result is shortened, and last the observation. Instruction and screen always stay.

    Raises BadInput for an empty instruction, without screenshot and observation, for a screen that cannot be used
    (`screenshot_size`; without `count` a past one too), and where instruction and screen alone do not fit; and what
    `count` raises.
    """
    instruction = instruction.strip()
    if not instruction:
        raise BadInput("the instruction is empty", fix="give the task a text")
    if screenshot is None and observation is None:
        raise BadInput("there is nothing to see and nothing to read", fix="give a screen, or an observation's text")
    screen_size = NO_SCREEN if screenshot is None else screenshot_size(screenshot, policy.max_image_side)
    grammar = Grammar.of(policy, screen_size)
    instructions = format_instructions(grammar)
    memory = history if isinstance(history, EpisodeMemory) else build_memory(history, policy)
    memory = replace(memory, observation=observation)

    def attempt(kept: EpisodeMemory) -> tuple[Context, int]:
        context = _render(instructions, instruction, kept, screenshot, grammar, policy)
        return context, count_tokens_upper_bound(context, policy) if count is None else count(context)

    context, tokens = attempt(memory)
    if tokens <= policy.max_context_tokens:
        return context
    smaller = list(_reductions(memory, policy))
    context, tokens = attempt(smaller[-1])
    if tokens > policy.max_context_tokens:
        what = f"the instruction and one {'observation' if screenshot is None else 'screen'} take {tokens} tokens"
        raise BadInput(what, where="policy.max_context_tokens", fix=f"raise it above {policy.max_context_tokens}")
    # Binary search for the first reduction that fits: a handful of counts.
    first, last = 0, len(smaller) - 1
    while first < last:
        middle = (first + last) // 2
        found, tokens = attempt(smaller[middle])
        if tokens <= policy.max_context_tokens:
            context, last = found, middle
        else:
            first = middle + 1
    return context


def _reductions(memory: EpisodeMemory, policy: config.PolicySettings) -> Iterator[EpisodeMemory]:
    """Yield `memory` with less and less in it; the last one is empty, and there is at least that one."""
    if memory.digest:
        yield (memory := replace(memory, digest=""))
    counted = int(policy.summary_max_chars > 0)  # what is left out is still counted, where a digest is asked for
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
    yield EpisodeMemory(observation=memory.observation)


def _shorter(text: str, characters: int) -> Iterator[str]:
    """Yield `text` cut to half of what is shown of it, half of that, and so on to "". characters: maximum shown."""
    characters = min(len(text), characters) // 2
    while text:
        yield (text := truncate_middle(text, characters) if characters >= _SHORTEST_RESULT else "")
        characters //= 2


def _render(
    told: str, task: str, memory: EpisodeMemory, screen: bytes | None, grammar: Grammar, policy: config.PolicySettings
) -> Context:
    """Write the messages of a step. told: instructions for a model that does not know its action space, else ""."""
    if memory.before:
        task += f"\nBefore: {memory.before} steps" + (f": {memory.digest}" if memory.digest else ".")
    if memory.episodic:
        task += "\nDone: " + " ".join(memory.episodic)
    messages = [Message("user", (told + task,))] if told else []
    result = ""  # of the step before
    for step in memory.working:
        shown = _shown(step.screenshot, step.observation, policy.observation_characters)
        if result or shown:
            messages.append(Message("user", (*_returned(result, grammar, policy.result_characters), *shown)))
        said = format_response(step.thought, restore_box_tokens(step.action, grammar))
        messages.append(Message("assistant", (said,)))
        result = format_outcome(step)
    returned = _returned(memory.result, grammar, policy.result_characters)
    shown = _shown(screen, memory.observation, policy.observation_characters)
    messages.append(Message("user", (*returned, *shown, *(() if told else (task,)))))
    return tuple(messages)


def _shown(screenshot: bytes | None, observation: str | None, characters: int) -> tuple[str | Image, ...]:
    """Return what a step shows: the observation's text, then the screen, as far as there is each."""
    read = () if observation is None else (f"Observation: {truncate_middle(observation.strip(), characters)}\n",)
    return read if screenshot is None else (*read, Image(screenshot))


def _returned(result: str, grammar: Grammar, characters: int) -> tuple[str, ...]:
    """Format the result of a step in the form of the grammar; it stands before the screen that followed the step."""
    result = truncate_middle(result.strip(), characters)
    if not result:
        return ()
    if grammar.form == "tool_call":
        closed = result.replace("</tool_response>", "< /tool_response>")  # a result must not close its tag
        return (f"<tool_response>\n{closed}\n</tool_response>\n",)
    return (f"Result: {result}\n",)


def count_tokens_upper_bound(context: Context, policy: config.PolicySettings | None = None) -> int:
    """Compute an upper bound of the tokens that a byte-level tokeniser in Qwen's chat form makes of `context`.

    It counts a token for each byte of text, 8 a message for the form, 24 for a system message that the form may add,
    and for each screen those of the image that `policy.resize_factor`, `min_pixels` and `max_pixels` resize it to. The
    defaults of these give no fewer tokens than the embedded model, Qwen2-VL, Qwen2.5-VL and Qwen3-VL take. Raises
    BadInput as `screenshot_size` does.
    """
    policy = policy or config.PolicySettings()
    total = 32
    for message in context:
        total += 8
        for part in message.parts:
            total += 2 + _image_tokens(part.png, policy) if isinstance(part, Image) else _bytes(part)
    return total


def _bytes(text: str) -> int:
    """Count the bytes of the text as it will be tokenised: normalised, its control tokens broken up."""
    forms = (text, unicodedata.normalize("NFC", text))
    return max(len(form.encode("utf-8", "replace")) for form in forms) + text.count("<|")


def _image_tokens(png: bytes, policy: config.PolicySettings) -> int:
    factor, size = policy.resize_factor, screenshot_size(png, policy.max_image_side)
    width, height = smart_resize(*size, factor, policy.min_pixels, policy.max_pixels)
    return (width // factor) * (height // factor)
