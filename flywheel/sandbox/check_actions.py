"""What the conformance suite tries: ordinary actions, those at and beyond the edge, impossible and hostile ones."""

from __future__ import annotations

import math

from flywheel.agent import actions as act
from flywheel.agent.actions import Click, Drag, Hotkey, Point, Wait

MIDDLE = Point(0.5, 0.5)

# The edge belongs to the screen up to, and without, 1.
INSIDE = (Click(Point(0.0, 0.0)), Click(Point(math.nextafter(1, 0), math.nextafter(1, 0))))
OUTSIDE = (
    Click(Point(1.5, 0.5)),
    Click(Point(1.0, 0.5)),
    Click(Point(0.5, 1.0)),
    Click(Point(-0.01, 0.5)),
    Click(Point(0.5, -1e300)),
    Click(Point(math.nan, 0.5)),
    Click(Point(0.5, math.inf)),
    act.LeftDouble(Point(0.5, 2)),
    act.RightSingle(Point(2, 0.5)),
    Drag(MIDDLE, Point(0.5, 1.0)),
    act.Hover(Point(1.0, 0.5)),
    Drag(Point(-1, 0), MIDDLE),
    act.Scroll(Point(7, 7), "down"),
)
# Nothing that an environment with a screen, a mouse and a keyboard could do.
IMPOSSIBLE = (
    Hotkey(("hyper", "x")),
    Hotkey(()),
    act.Press("nokey"),
    act.Release(""),
    act.Press("\0"),
    act.Navigate("javascript:document.body.remove()"),
    act.Navigate("file:///etc/passwd"),
    act.Navigate("data:text/html,<p>elsewhere"),
    act.Navigate("chrome://crash"),
    act.Navigate("about:blank"),
    act.Navigate("http://example.invalid/"),
    act.Navigate("http://["),
)
# What belongs to other environments: noted, unless the caller says that this one can do it.
ELSEWHERE = (
    act.LongPress(MIDDLE),
    act.OpenApp("mail"),
    act.PressHome(),
    act.PressBack(),
    act.Terminal("true"),
    act.RunPython("1"),
    act.ReadFile("a.txt"),
    act.WriteFile("a.txt", "a"),
    act.ListFiles("."),
    act.ToolCall.of("tool", {"a": 1}),
)
ORDINARY = (
    Click(MIDDLE),
    act.LeftDouble(MIDDLE),
    act.RightSingle(MIDDLE),
    act.Hover(MIDDLE),
    Drag(Point(0.2, 0.2), Point(0.8, 0.8)),
    act.Scroll(MIDDLE, "down"),
    act.Scroll(MIDDLE, "up"),
    act.Scroll(MIDDLE, "left"),
    act.Scroll(MIDDLE, "right"),
    Hotkey(("ctrl", "a")),
    Hotkey(("esc",)),
    act.Press("shift"),
    act.Press("a"),
    act.Release("a"),
    act.Release("shift"),
    Wait(),
    act.NavigateBack(),
)
TEXTS = (
    "",
    "\n",
    "\ud800",
    "\0\x01\x1b[31m\x7f",
    "a\u202eb\u2066",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u0301",
    "</script><script>document.body.remove()</script>",
    "'\"`${1}\\",
    "{{7*7}} %s {0}",
    "\t\r\n\u2028\u2029",
    "e" * 100_000,
)
