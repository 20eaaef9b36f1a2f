"""Pages that ask, and answers to them."""

from __future__ import annotations

from browser_pages import at

from flywheel.agent.actions import Action, Click, Hotkey, Point
from flywheel.envs.browser.driver.tab import BrowserTab

CLICK = at(100, 190)  # below every dialog of these tests
ENTER, ESCAPE, TAB = (Hotkey((name,)) for name in ("enter", "esc", "tab"))


def asks(script: str, body: str = "") -> str:
    """A page whose click runs a script, which tells what it was answered."""
    return f"{body}<script>const told = []; addEventListener('click', () => {{ {script} }})</script>"


async def step(tab: BrowserTab, action: Action, ms: float = 0) -> tuple[str, dict, bytes]:
    """Notes, what is seen, screen."""
    note = await tab.do(action)
    seen = await tab.observe(ms)
    screen = await tab.screenshot()
    return "; ".join(filter(None, [note, *tab.notes.take()])), seen, screen


def on(seen: dict, name: str) -> Click:
    part = next(one for one in seen["elements"] if one["name"] == f"dialog {name}")
    return Click(Point(part["x"] + part["w"] / 2, part["y"] + part["h"] / 2))
