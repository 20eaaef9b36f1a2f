"""Model outputs to try a parser with: as they should be, with the slips that models make, and broken at random.

Seeded, so that a fault is found again. Tests and `benchmarks/parse.py` draw from here.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.agent.grammar import Grammar, format_response, grid_space, norm1_space, norm1000_space, pixel_space
from flywheel.agent.parsing.parser import serialise_action

_SCREEN = pixel_space(1932, 1092)  # 1920 x 1080 as Qwen2.5-VL is shown it
# Each form in each space that the settings allow it.
GRAMMARS = (
    Grammar("minimal", grid_space(100)),
    Grammar("point", grid_space(1000)),
    Grammar("point", grid_space(1000), "mobile", functions=True),
    Grammar("ui_tars_1_5", _SCREEN, "computer"),
    Grammar("ui_tars_1_0", norm1000_space(), "mobile"),
    Grammar("tool_call", grid_space(1000), "browser"),
    Grammar("tool_call", _SCREEN, "computer", functions=True),
    Grammar("tool_call", grid_space(1000), "mobile", functions=True),
    Grammar("point", _SCREEN, "computer"),
    Grammar("point", norm1_space(), "mobile"),
    Grammar("tool_call", norm1_space(), "browser"),
)

_TEXTS = (
    "blue mug",
    "42",
    "it's fine",
    'say "hi", ok',
    "two\nlines\n",
    "C:\\temp\\new",
    "f(x), g(y)",
    "naïve 漢字 🙂",
    "Action: click(point='<point>1 2</point>')",
    "<tool_call>{}</tool_call>",
    "",
    "ls -la | grep 'a b' > out.txt",
    "https://example.test/?q=a%20b&c='d'#e",
    "  spaced  ",
    "a\tb\rc",
)
_KEYS = ("ctrl", "shift", "alt", "c", "v", "enter", "left", "f5", "+", "-", "'", "\\", "/", "pagedown")
_THOUGHTS = (
    "I click the Save button.",
    "The dialog is open, so the next step is to fill in the name of the file and confirm.",
    "I see the settings page. Notifications are still on; I will turn them off with the switch on the right.",
    "First I tried the menu.\nIt did nothing, so I use the shortcut instead.",
    "我点击“保存”按钮。",
    "",
    "The list (see above) has 3 entries: mug, lamp, chair. I scroll down to find 'desk'.",
)


def action(rng: random.Random) -> Action:
    def point() -> Point:
        return Point(rng.random(), rng.random())

    text, keys = rng.choice(_TEXTS), tuple(rng.sample(_KEYS, rng.randint(1, 3)))
    # Clicks are what agents do most.
    return rng.choices(
        (
            act.Click(point()),
            act.LeftDouble(point()),
            act.LeftTriple(point()),
            act.RightSingle(point()),
            act.LongPress(point()),
            act.Hover(point()),
            act.Drag(point(), point()),
            act.Scroll(point(), rng.choice(("up", "down", "left", "right"))),
            act.Hotkey(keys),
            act.Press(keys[0]),
            act.Release(keys[0]),
            act.Type(text),
            act.TypeAt(point(), text, rng.random() < 0.5),
            act.Wait(),
            act.Finished(text),
            act.CallUser(),
            act.Navigate(text),
            act.NavigateBack(),
            act.OpenApp(text),
            act.PressHome(),
            act.PressBack(),
            act.Terminal(text),
            act.RunPython(text),
            act.ReadFile(text),
            act.ListFiles(text),
            act.WriteFile(text, rng.choice(_TEXTS)),
            act.ToolCall.of("search", {"q": text, "top": [1, 2.5, None]}),
        ),
        (30, 2, 1, 2, 2, 2, 4, 8, 5, 2, 2, 10, 2, 3, 4, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1),
    )[0]


def plain(rng: random.Random, grammar: Grammar) -> str:
    """As a trained model writes it."""
    return format_response(rng.choice(_THOUGHTS), serialise_action(action(rng), grammar))


def slipped(rng: random.Random, grammar: Grammar) -> str:
    """With one of the slips that models make."""
    return rng.choice(_SLIPS)(plain(rng, grammar))


def _swap(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


_SLIPS: tuple[Callable[[str], str], ...] = (
    _swap(": ", "："),
    _swap("Action: ", "Action:"),
    _swap("Action: ", "Action:\n"),
    _swap("\nAction: ", " Action: "),
    _swap("Thought: ", ""),
    _swap("Thought: ", "Reflection: It did nothing.\nAction_Summary: "),
    _swap("Thought: ", "<think>I look.</think>\n"),
    _swap("'", '"'),
    _swap('"', "'"),
    _swap("(", "（"),
    _swap(", ", "，"),
    _swap("<point>", ""),
    _swap("}}", ",},}"),
    _swap("}}\n", "}\n"),
    _swap("<tool_call>\n", "```json\n"),
    _swap("\n</tool_call>", ""),
    _swap("Action: ", "**Action:** "),
    lambda text: text + "\n\nAction: wait()",
    lambda text: text + "<|im_end|>",
    lambda text: text.replace("Action: ", "Action:\n```python\n") + "\n```",
    lambda text: text[: len(text) * 3 // 4],
    lambda text: text + text,
)

SCRAPS = (
    "Thought: ",
    "Action: ",
    "Action：",
    "\n",
    " ",
    "'",
    '"',
    "\\",
    "“",
    "”",
    "(",
    ")",
    "（",
    "）",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "=",
    "<point>",
    "</point>",
    "<|box_start|>",
    "<|box_end|>",
    "<tool_call>",
    "</tool_call>",
    "click(",
    "type(content=",
    "drag(",
    "scroll(",
    "hotkey(key='",
    "finished()",
    "call_user()",
    "call_tool(tool='x', arguments='",
    "point=",
    "start_box=",
    "direction=",
    '{"name": "computer_use", "arguments": {',
    '"action": "',
    '"coordinate": [',
    "```",
    "```json\n",
    "<think>",
    "1e999",
    "NaN",
    "-Infinity",
    "9" * 30,
    "9" * 5000,
    "-",
    "0.5",
    "５",
    "\ud800",
    "\\ud83d",
    "\\u0041",
    "\x00",
    "\u2028",
    "é",
    "漢",
    "🙂",
    "[" * 3000,
    "{" * 3000,
    '{"a":' * 2000,
    "null",
    "True",
)


def broken(rng: random.Random, grammar: Grammar) -> str:
    """An output cut, spliced and strewn with scraps, or scraps alone."""
    pieces = [rng.choice(SCRAPS) for _ in range(rng.randint(0, 12))]
    if rng.random() < 0.2:
        return "".join(pieces)
    text = rng.choice((plain, slipped))(rng, grammar)
    for piece in pieces[: rng.randint(0, 4)]:
        at, cut = rng.randint(0, len(text)), rng.choice((0, 0, 1, 3, 20))
        text = text[:at] + piece + text[at + cut :]
    if rng.random() < 0.2:
        at = rng.randint(0, len(text))
        text = text[at:] + text[:at]
    return text[: rng.randint(0, len(text))] if rng.random() < 0.2 else text
