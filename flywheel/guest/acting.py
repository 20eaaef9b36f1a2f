"""Acts and pictures over HTTP: single acts, a step (acts, then the picture when the screen has come to rest)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from screen import Hands, Screen
from server import Answer, Refused, Request, Routes

BUTTONS = ("left", "middle", "right")
DIRECTIONS = ("up", "down", "left", "right")
MAX_TEXT = 10_000  # characters of one act
_MAX_ACTS, _MAX_NOTCHES = 1000, 100
_AFTER_MS, _WITHIN_MS, _LONGEST_MS = 0.0, 2000.0, 60_000.0


def routes(screen: Screen) -> Routes:
    def act(request: Request) -> dict:
        _perform(screen.hands, request.json())
        return {"ok": True}

    def step(request: Request) -> Answer:
        acts = request.json().get("acts", [])
        if not isinstance(acts, list) or len(acts) > _MAX_ACTS:
            raise Refused(f"acts is not a list of {_MAX_ACTS} at most")
        for one in acts:
            _perform(screen.hands, one)
        return _picture(screen, request.number("after_ms", 0, _LONGEST_MS, _AFTER_MS), _within(request))

    def screenshot(request: Request) -> Answer:
        try:
            after_ms = float(request.query["after_ms"])
        except KeyError:
            return Answer(screen.eyes.take(), "image/png")
        except ValueError:
            raise Refused("after_ms is not a number") from None
        if not 0 <= after_ms <= _LONGEST_MS:
            raise Refused(f"after_ms is not a number from 0 to {_LONGEST_MS:g}")
        return _picture(screen, after_ms, _WITHIN_MS)

    return {("POST", "/act"): act, ("POST", "/step"): step, ("GET", "/screenshot"): screenshot}


def _within(request: Request) -> float:
    return request.number("within_ms", 0, _LONGEST_MS, _WITHIN_MS)


def _picture(screen: Screen, after_ms: float, within_ms: float) -> Answer:
    return Answer(screen.eyes.settled(screen.rest, after_ms, within_ms), "image/png")


def _perform(hands: Hands, act: Any) -> None:
    """Raises Refused for an act that there is not, or that lacks something."""
    if not isinstance(act, dict) or act.get("type") not in _ACTS:
        raise Refused(f"an act has a type: {', '.join(_ACTS)}")
    _ACTS[act["type"]](hands, act)


def _button(down: bool) -> Callable[[Hands, Mapping], None]:
    return lambda hands, act: hands.button(_one_of(act, "button", BUTTONS), down)


def _key(down: bool) -> Callable[[Hands, Mapping], None]:
    return lambda hands, act: hands.key(_text(act, "key", 32), down)


def _move(hands: Hands, act: Mapping) -> None:
    width, height = hands.size
    hands.move(_whole(act, "x", 0, width - 1), _whole(act, "y", 0, height - 1))


def _scroll(hands: Hands, act: Mapping) -> None:
    hands.scroll(_one_of(act, "direction", DIRECTIONS), _whole(act, "notches", 1, _MAX_NOTCHES))


_ACTS: dict[str, Callable[[Hands, Mapping], None]] = {
    "move": _move,
    "down": _button(True),
    "up": _button(False),
    "key_down": _key(True),
    "key_up": _key(False),
    "text": lambda hands, act: hands.text(_text(act, "text", MAX_TEXT)),
    "scroll": _scroll,
}


def _one_of(act: Mapping, name: str, known: tuple[str, ...]) -> str:
    value = act.get(name, known[0])
    if value not in known:
        raise Refused(f"{name} is none of {', '.join(known)}")
    return value


def _whole(act: Mapping, name: str, least: int, most: int) -> int:
    value = act.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Refused(f"{name} is not a whole number from {least} to {most}")
    return value


def _text(act: Mapping, name: str, most: int) -> str:
    value = act.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise Refused(f"{name} is not a text of {most} characters at most")
    return value
