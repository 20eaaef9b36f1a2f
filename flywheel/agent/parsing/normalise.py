"""Translate the action and parameter names of other models into the grammar's own, and build the action."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point, ToolCall, canonical_json, replace_surrogates
from flywheel.agent.grammar import CoordinateSpace
from flywheel.agent.parsing import lexing
from flywheel.agent.parsing.lexing import SYNONYMS, ParseFailure, RawCall, ambiguous_text, fold_name, unsupported_action

MAX_KEYS = 3
DIRECTIONS = ("up", "down", "left", "right")


@dataclass(slots=True)
class CallArguments:
    """Hold the arguments of one call, by the grammar's parameter names, and read them as typed values.

    name: the action. values: texts, numbers, lists and mappings. at: offset of the call in the text. space: what the
    numbers of points mean. places: known offsets of values.
    """

    name: str
    values: dict[str, Any]
    at: int
    space: CoordinateSpace
    places: Mapping[str, int]

    def place(self, name: str) -> int:
        """Return the offset of the value `name` in the text; that of the call where it is not known."""
        return self.places.get(name, self.at)

    def need(self, *names: str) -> str:
        """Return the first parameter name of `names` that is given. Raises ParseFailure where none is."""
        for name in names:
            if name in self.values:
                return name
        raise ParseFailure(f"{self.name} needs {names[0]}", self.at)

    def text(self, *names: str) -> str:
        """Return the value of the first given parameter of `names`, as text.

        Raises ParseFailure where none is given, or the value is no text.
        """
        name = self.need(*names)
        return replace_surrogates(to_text(self.values[name], self.place(name)))

    def keys(self) -> tuple[str, ...]:
        """Return the names of the keys in the parameter `key`, which are pressed together.

        Raises ParseFailure for none, more than MAX_KEYS, a key without a name, and where it is not clear whether they
        are pressed together.
        """
        value, place = self.values[self.need("key")], self.place("key")
        words = value if isinstance(value, list) else [value]
        keys: list[str] = []
        for word in words:
            pressed = lexing.split_keys(replace_surrogates(to_text(word, place)), place)
            if len(words) > 1 and len(pressed) > 1 and pressed[-1] not in lexing.MODIFIERS:
                raise ambiguous_text(f"keys together, or one after the other? {describe_value(value)[:40]}", place)
            if not pressed and len(words) > 1:
                raise ParseFailure("a key has no name", place)
            keys += pressed
        if not keys:
            raise ParseFailure("no key is named", place)
        if len(keys) > MAX_KEYS:
            raise ParseFailure(f"{len(keys)} keys; {MAX_KEYS} at most", place)
        return tuple(keys)

    def point(self, *names: str) -> Point:
        """Return the point of the first given parameter of `names`: of two numbers, or the middle of a box of four.

        Raises ParseFailure for anything else, and for numbers outside the space.
        """
        name = self.need(*names)
        value, place = self.values[name], self.place(name)
        numbers = to_numbers(value)
        if len(numbers) not in (2, 4):
            raise ParseFailure(f"not a point: {describe_value(value)[:40]!r}", place)
        axes = (self.space.x, self.space.y)
        for index, number in enumerate(numbers):
            axis = axes[index % 2]
            # An integer of a thousand digits cannot become a float, so it is compared before anything is computed.
            if not 0 <= number <= axis.size:
                written = f"{number:g}" if isinstance(number, float) or abs(number) < 1e15 else "a huge number"
                raise ParseFailure(f"{written} lies outside 0..{axis.last}", place)
        if self.space.kind != "norm1" and any(0 < number < 1 for number in numbers):
            said = describe_value(value)[:40]
            raise ambiguous_text(f"{said} is a fraction of the screen, and policy.coordinate_format is not", place)
        if len(numbers) == 4:
            numbers = [(numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2]
        return Point(axes[0].read(numbers[0]), axes[1].read(numbers[1]))


def to_numbers(value: Any) -> list[float]:
    """List the numbers of a point or box: `[1, 2]`, `[[1, 2], [3, 4]]`, `{"x": 1, "y": 2}`, a text; none for others."""
    if isinstance(value, str):
        return lexing.parse_numbers(value)
    if type(value) is list and len(value) == 2 and type(value[0]) is type(value[1]) is int:
        return value
    if isinstance(value, Mapping):
        value = [value.get("x"), value.get("y")]
    if isinstance(value, list) and value and all(isinstance(one, list) for one in value[:3]):
        value = [number for one in value[:3] for number in one]
    if not isinstance(value, list):
        return []
    if len(value) in (2, 4) and all(isinstance(one, str) for one in value):
        return lexing.parse_numbers(", ".join(value))
    return value if all(type(number) in (int, float) for number in value) else []


def to_text(value: Any, at: int) -> str:
    """Convert a text, number or mapping to text. at: its offset, for the error. Raises ParseFailure for others."""
    if isinstance(value, str):
        return value
    if type(value) in (int, float):
        return describe_value(value)
    if isinstance(value, dict):  # the arguments of a tool
        try:
            return canonical_json(value)
        except (ValueError, RecursionError):
            pass
    raise ParseFailure(f"not a text: {describe_value(value)[:40]}", at)


def describe_value(value: Any) -> str:
    """Return a text as it is, and any other value as JSON of at most 200 characters; never raises."""
    try:
        return value if isinstance(value, str) else json.dumps(value)[:200]
    except (ValueError, RecursionError):  # an integer of thousands of digits; a deep nest
        return type(value).__name__


def build_action(arguments: CallArguments) -> Action:
    """Build the action of a call. Raises ParseFailure for a missing or bad argument, and for an unknown name."""
    if arguments.name not in _BUILDERS:
        raise ParseFailure(f"unknown action {arguments.name[:40]!r}", arguments.at)
    kind, readers = _BUILDERS[arguments.name]
    given = arguments.values
    if kind is act.ToolCall:
        return _tool(arguments)
    if kind is act.Finished and "content" not in given:
        return kind()
    if kind is act.Scroll:
        # Mobile models write a swipe as a scroll with two points.
        if "end_point" in given and "direction" not in given:
            return act.Drag(_FIELDS["start_point"](arguments), _FIELDS["end_point"](arguments))
        direction = _direction(arguments)
        whole = "point" in given or "start_point" in given
        return kind(_FIELDS["point"](arguments) if whole else Point(0.5, 0.5), direction)
    return kind(*[reader(arguments) for reader in readers])


def _direction(arguments: CallArguments) -> str:
    direction = arguments.text("direction").strip().lower()
    if direction not in DIRECTIONS:
        raise ParseFailure(f"unknown direction {direction[:20]!r}", arguments.place("direction"))
    return direction


def _one_key(arguments: CallArguments) -> str:
    keys = arguments.keys()
    if len(keys) != 1:
        raise ParseFailure(f"{arguments.name} takes one key", arguments.place("key"))
    return keys[0]


def _tool(arguments: CallArguments) -> Action:
    name = arguments.text("tool", "content")
    given = arguments.text("arguments").strip() if "arguments" in arguments.values else ""
    try:
        value, end = lexing.parse_json(given or "{}", 0)
        if given[end:].strip() and given:
            raise ValueError("more stands behind it")
        return ToolCall(name, canonical_json(value))
    except ParseFailure as fault:
        reason = fault.error.reason
    except (ValueError, RecursionError) as error:
        reason = str(error)[:80]
    raise ParseFailure(f"the arguments of a tool are not a JSON object: {reason}", arguments.place("arguments"))


# Field of an action -> how it is read, from the first of some parameters that is given.
_FIELDS: dict[str, Callable[[CallArguments], Any]] = {
    "point": lambda arguments: arguments.point("point", "start_point"),
    "start_point": lambda arguments: arguments.point("start_point", "point"),
    "end_point": lambda arguments: arguments.point("end_point"),
    "keys": CallArguments.keys,
    "key": _one_key,
    "content": lambda arguments: arguments.text("content"),
    "clear": lambda arguments: lexing.to_flag(arguments.values.get("clear")),
    "app_name": lambda arguments: arguments.text("app_name", "content"),
    "command": lambda arguments: arguments.text("command", "content"),
    "code": lambda arguments: arguments.text("code", "content"),
    "path": lambda arguments: arguments.text("path"),
}
_BUILDERS = {
    name: (kind, [_FIELDS.get(field.name) for field in fields(kind)])
    for name, kind in (*((name, kind) for kind, name in act.ACTION_NAMES.items()), ("mouse_move", act.Hover))
}
KNOWN_ACTIONS = tuple(_BUILDERS)


COMPUTER_TOOLS = frozenset(SYNONYMS["computer_tools"].split())
CODE_LIBRARIES = frozenset(SYNONYMS["code_libraries"].split())
PYAUTOGUI = "pyautogui"  # its functions take more positional arguments, and its `press` also releases the key
ACTION_OF_SYNONYM = {name: name for name in KNOWN_ACTIONS} | {
    word: name for name, words in SYNONYMS["actions"].items() for word in words.split()
}
KEY_OF_SYNONYM: dict[str, str] = SYNONYMS["keys"]
BACK_ON_PHONES = frozenset(SYNONYMS["phones"].split())
PARAMETER_OF_SYNONYM = {name: name for name in SYNONYMS["own_parameters"].split()} | {
    word: name for name, words in SYNONYMS["parameters"].items() for word in words.split()
}
# Parameters that an action takes. Others are refused where ignoring them would change what is done.
ACCEPTED_PARAMETERS = {name: frozenset(words.split()) for name, words in SYNONYMS["accepted"].items()}
LEFT_BUTTONS, RIGHT_BUTTONS = ("left", "primary"), ("right", "secondary")
BUTTON_NAMES = {"home": "press_home", "back": "press_back", "enter": "hotkey"}
SUCCESS_STATUSES = frozenset({"", "success", "succeed", "succeeded", "complete", "completed", "done"})
FAILURE_STATUSES = frozenset({"failure", "fail", "failed", "infeasible", "impossible"})


def arguments_by_position(name: str, call: RawCall) -> dict[str, Any]:
    """Return the positional arguments of a call by parameter name, found by their order.

    name: the action's, as `fold_name` writes it. Raises ParseFailure where there are too many, or they do not fit.
    """
    given, known = call.inline, ACTION_OF_SYNONYM.get(name, name)
    if known == "hotkey" or (known in ("press", "release")):
        if known == "press" and call.tool == PYAUTOGUI and len(given) == 2 and lexing.is_number(given[1]):
            return {"key": given[0], "clicks": given[1]}
        keys = [key for one in given for key in (one if isinstance(one, list) else [one])]
        return {"key": keys if len(keys) > 1 else keys[0]}
    if known == "scroll" or name == "hscroll":
        return _scrolled(given, call)
    if known in ACCEPTED_PARAMETERS and known != "type":
        return _placed(known, name, given, call)
    names = SYNONYMS["positions"].get(known, "content").split()
    if known == "type" and call.tool == PYAUTOGUI and len(given) == 2 and lexing.is_number(given[1]):
        given = given[:1]  # pyautogui's interval
    if len(given) > len(names) and names:
        raise ParseFailure(f"{call.name[:40]} takes {len(names)} values without a name, and has {len(given)}", call.at)
    return dict(zip(names, given, strict=False))


def _placed(known: str, name: str, given: tuple[Any, ...], call: RawCall) -> dict[str, Any]:
    if len(given) >= 2 and all(map(lexing.is_number, given[:2])):
        point, rest = list(given[:2]), given[2:]
    else:
        point, rest = given[0], given[1:]
    if known == "drag" and name not in ("drag_to", "dragto"):
        if len(rest) == 2 and all(map(lexing.is_number, rest)):
            rest = (list(rest),)
        if len(rest) != 1:
            raise ParseFailure("a drag takes two points", call.at)
        return {"start_point": point, "end_point": rest[0]}
    if known == "drag":
        return {"end_point": point}  # what follows is its duration
    if known == "click" and call.tool == PYAUTOGUI and len(rest) in (1, 2) and lexing.is_number(rest[0]):
        return {"point": point, "clicks": rest[0]}  # what follows is pyautogui's interval
    if rest:
        raise ParseFailure(f"{call.name[:40]} takes a point, and more is given", call.at)
    return {"point": point}


def _scrolled(given: tuple[Any, ...], call: RawCall) -> dict[str, Any]:
    values: dict[str, Any] = {}
    code = call.tool == PYAUTOGUI
    numbers = [one for one in given if lexing.is_number(one)]
    words = [one for one in given if isinstance(one, str) and one.strip().lower() in DIRECTIONS]
    points = [one for one in given if one not in numbers and one not in words]
    if len(numbers) in (2, 3) and not points and (code or words):
        # pyautogui gives the amount, then the point; other forms give the point first.
        at = numbers[1:] if code and len(numbers) == 3 else numbers[:2]
        if code and len(numbers) == 2:
            raise ParseFailure("half of a point is missing", call.at)
        points, numbers = [at], [numbers[0]] if code else numbers[2:]
    if len(words) > 1 or len(points) > 1 or len(numbers) > 1 or not (words or numbers):
        raise ParseFailure("not a scroll: an amount or a direction is expected, and a point", call.at)
    values |= {"direction": words[0]} if words else {}
    values |= {"amount": numbers[0]} if numbers else {}
    return values | ({"point": points[0]} if points else {})


# Names that stand for several actions: the arguments say which is meant. NAME_RULES apply first, by the name as
# written; FINISH_RULES last, by the grammar's name. A rule may change `values`, and returns the action's name.


def _swipe(values: dict[str, Any], call: RawCall) -> str:
    """Turn a swipe with two points into a drag; with a direction (the finger's) into a scroll the other way."""
    direction = values.get("direction")
    if isinstance(direction, str) and "end_point" not in values:
        opposite = {"up": "down", "down": "up", "left": "right", "right": "left"}
        values["direction"] = opposite.get(direction.strip().lower(), direction)
        values.pop("amount", None)
        return "scroll"
    return "drag"


def _hscroll(values: dict[str, Any], call: RawCall) -> str:
    """Turn a horizontal scroll into a scroll; a positive amount is right (Qwen, pyautogui)."""
    if "direction" not in values:
        values.setdefault("amount", values.pop("clicks", None))
        values["direction"] = _by_sign(values, "left right", call.at)
    return "scroll"


def _by_sign(values: dict[str, Any], directions: str, at: int) -> str:
    amount = lexing.to_number(values.pop("amount", None))
    if not amount:
        raise ParseFailure(f"not an amount of scrolling: {describe_value(amount)[:20]}", at)
    return directions.split()[amount > 0]


def _system_button(values: dict[str, Any], call: RawCall) -> str:
    button = describe_value(values.pop("button", values.pop("content", values.pop("key", ""))))[:20].strip().lower()
    values.clear()
    if button not in BUTTON_NAMES:
        if button in ("menu", "recent", "recents", "app_switch", "power", "volume_up", "volume_down"):
            raise unsupported_action(f"the button {button}", call.at)
        raise ParseFailure(f"unknown button {button!r}", call.at)
    if button == "enter":
        values["key"] = "enter"
    return BUTTON_NAMES[button]


def _terminate(values: dict[str, Any], call: RawCall) -> str:
    status = describe_value(values.get("status", "")).strip().lower()
    if status not in SUCCESS_STATUSES and status not in FAILURE_STATUSES:
        raise ParseFailure(f"unknown status {status[:20]!r}", call.at)
    return "call_user" if status in FAILURE_STATUSES else "finished"


def _launch(values: dict[str, Any], call: RawCall) -> str:
    """Turn CogAgent's `launch` into `navigate` where it gives an address, else into `open_app`."""
    address = values.pop("content", "None") if "url" in call.values else "None"
    if address != "None":
        values.pop("app_name", None)
        values["content"] = address
        return "navigate"
    return "open_app"


def _back(values: dict[str, Any], call: RawCall) -> str:
    return "press_back" if fold_name(call.tool) in BACK_ON_PHONES else "navigate_back"


def _scroll_to_side(values: dict[str, Any], call: RawCall) -> str:
    values["direction"] = fold_name(call.name).removeprefix("scroll_")
    values.pop("amount", None)
    return "scroll"


NAME_RULES: dict[str, Callable[[dict[str, Any], RawCall], str]] = {
    "swipe": _swipe,
    "hscroll": _hscroll,
    "system_button": _system_button,
    "terminate": _terminate,
    "launch": _launch,
    "back": _back,
    **{f"scroll_{direction}": _scroll_to_side for direction in DIRECTIONS},
}


def _finish_click(name: str, values: dict[str, Any], call: RawCall) -> str:
    """Choose the action by a click's button and number of clicks. Raises ParseFailure where the action set has none."""
    if "button" not in values and "clicks" not in values:
        return name
    button = describe_value(values.pop("button", "left")).strip().lower()
    clicks = lexing.to_number(values.pop("clicks", 1))
    if button in LEFT_BUTTONS and clicks == 1:
        return name
    if name == "click" and button in LEFT_BUTTONS and clicks in (2, 3):
        return "left_double" if clicks == 2 else "left_triple"
    if name in ("click", "right_single") and button in RIGHT_BUTTONS and clicks == 1:
        return "right_single"
    raise unsupported_action(f"{name} with button {button[:20]}, {describe_value(clicks)} times", call.at)


def _finish_drag(name: str, values: dict[str, Any], call: RawCall) -> str:
    button = describe_value(values.pop("button", "left")).strip().lower()
    if button not in LEFT_BUTTONS:
        raise unsupported_action(f"a drag with button {button[:20]}", call.at)
    path = values.pop("path", None)
    if isinstance(path, list):
        values["start_point"], values["end_point"] = _ends(path, call.at)
    if "point" in values:
        point = values["point"]
        if "start_point" in values and "end_point" not in values:  # Qwen and Anthropic: `coordinate` is the end
            values["end_point"] = values.pop("point")
        elif "end_point" not in values and isinstance(point, list) and len(point) == 2 and isinstance(point[0], list):
            values["start_point"], values["end_point"] = values.pop("point")
    return name


def _ends(path: list[Any], at: int) -> list[Any]:
    """Return the two ends of a straight path. Raises ParseFailure for any other path: a drag is straight."""
    points = [to_numbers(one) for one in path[:200]]
    if len(path) > 200 or len(path) < 2 or any(len(point) != 2 for point in points):
        raise ParseFailure(f"not a path: {describe_value(path)[:40]}", at)
    (x, y), (to_x, to_y) = points[0], points[-1]
    if any(not abs(number) < 1e9 for point in points for number in point):  # larger ones overflow below
        raise unsupported_action("a drag that leaves every screen", at)
    length = max(abs(to_x - x), abs(to_y - y), 1)
    if any(abs((to_x - x) * (b - y) - (to_y - y) * (a - x)) > 0.05 * length * length for a, b in points):
        raise unsupported_action("a drag along a path that is not straight", at)
    return [points[0], points[-1]]


def _finish_scroll(name: str, values: dict[str, Any], call: RawCall) -> str:
    """Find the direction of a scroll; the environment decides how far. Without a direction the sign of the amount
    tells: positive is up (Qwen, Fara, pyautogui). OpenAI's scroll_y and scroll_x: positive is down and right."""
    if "scroll_y" in values or "scroll_x" in values:
        down, right = lexing.to_number(values.pop("scroll_y", 0)), lexing.to_number(values.pop("scroll_x", 0))
        if down is None or right is None or (not down and not right):
            raise ParseFailure("not an amount of scrolling", call.at)
        if down and right:
            raise unsupported_action("a scroll in two directions at once", call.at)
        values["direction"] = ("down" if down > 0 else "up") if down else ("right" if right > 0 else "left")
    if "content" in values and "direction" not in values and str(values["content"]).strip().lower() in DIRECTIONS:
        values["direction"] = values.pop("content")
    if "clicks" in values:
        values.setdefault("amount", values.pop("clicks"))
    if "end_point" in values and "direction" not in values:
        return "drag"
    if "direction" not in values:
        if "amount" in values:
            values["direction"] = _by_sign(values, "down up", call.at)
    elif "amount" in values:
        amount, direction = lexing.to_number(values.pop("amount")), describe_value(values["direction"]).strip().lower()
        if amount is not None and amount < 0 and direction not in ("down", "left"):
            raise ambiguous_text(f"a scroll {direction[:20]} by {amount:g}", call.at)
    return name


def _finish_key(name: str, values: dict[str, Any], call: RawCall) -> str:
    """Accept keys named text, and turn pyautogui's `press`, which releases the key again, into a hotkey."""
    if "key" not in values and "content" in values:
        values["key"] = values.pop("content")
    if name == "press" and call.tool == PYAUTOGUI and fold_name(call.name) == "press":
        name = "hotkey"
    if "clicks" in values and lexing.to_number(values.pop("clicks")) != 1:
        raise unsupported_action(f"{name} more than once", call.at)
    several = isinstance(values.get("key"), list) and len(values["key"]) > 1
    if name == "hotkey" and fold_name(call.name) == "press" and several:
        raise unsupported_action("to press keys one after the other", call.at)
    return name


def _finish_type(name: str, values: dict[str, Any], call: RawCall) -> str:
    content = values.get("content")
    if isinstance(content, list) and all(isinstance(one, str) for one in content):
        if any(len(one) != 1 for one in content):
            raise unsupported_action("to press keys one after the other", call.at)
        values["content"] = "".join(content)
    if not {"index", "element_id"}.isdisjoint(call.values) or (call.values.get("element") and "point" not in values):
        raise unsupported_action("to type into an element by its number or its words", call.at)
    gemini = fold_name(call.name) == "type_text_at"  # clears unless it says otherwise
    if gemini and "submit" not in values:  # it is true in Gemini's documentation, and false in its reference code
        raise ambiguous_text("type_text_at without press_enter", call.at)
    clear = lexing.to_flag(values.pop("clear", gemini))
    if lexing.to_flag(values.pop("submit", False)) and "content" in values:
        values["content"] = to_text(values["content"], call.at).rstrip("\n") + "\n"
    if name == "type_at" or any(values.get(one) not in (None, [], "") for one in ("point", "start_point")):
        values |= {"clear": True} if clear else {}
        return "type_at"
    if clear:
        raise unsupported_action("to clear a field without its place and type in one action", call.at)
    return name


def _finish_end(name: str, values: dict[str, Any], call: RawCall) -> str:
    return "call_user" if describe_value(values.get("status", "")).strip().lower() in FAILURE_STATUSES else name


def _finish_open(name: str, values: dict[str, Any], call: RawCall) -> str:
    if "content" in values:
        values.setdefault("app_name", values.pop("content"))
    return name


FINISH_RULES: dict[str, Callable[[str, dict[str, Any], RawCall], str]] = {
    **dict.fromkeys(("click", "left_double", "left_triple", "right_single", "long_press"), _finish_click),
    "drag": _finish_drag,
    "scroll": _finish_scroll,
    **dict.fromkeys(("hotkey", "press", "release"), _finish_key),
    **dict.fromkeys(("type", "type_at"), _finish_type),
    "open_app": _finish_open,
    "finished": _finish_end,
}


# Translation of a call, in any text form (call, JSON, tags, commands), to the grammar's own names. A parameter that is
# known and changes nothing is ignored, one that changes the meaning is honoured or refused, an unknown one is refused.

_NO_TEXT = "no input text"  # GUI-R1's placeholder for no text
_NO_POINT = [-100, -100]  # and for no point


def is_known_action(name: str) -> bool:
    """Tell whether `name` is that of an action, of this action set or another model's."""
    return fold_name(name) in _ALL_NAMES


def is_known_parameter(word: str) -> bool:
    """Tell whether `word` is the name of an action's parameter, of this action set or another model's."""
    return word in PARAMETER_OF_SYNONYM or fold_name(word) in PARAMETER_OF_SYNONYM


def build_normalised_action(call: RawCall, space: CoordinateSpace) -> Action:
    """Translate a call to the grammar's names and build its action. Raises as `normalise_call` and `build_action`."""
    name, values, places = normalise_call(call)
    return build_action(CallArguments(name, values, call.at, space, places))


def normalise_call(call: RawCall) -> tuple[str, dict[str, Any], Mapping[str, int]]:
    """Translate a call to the grammar's names of actions and parameters.

    Returns the action's name, its arguments by parameter, and their offsets in the text by parameter. Raises
    ParseFailure for what is unknown, unsupported or ambiguous.
    """
    name, places, written = fold_name(call.name), {}, call.places or {}
    known = ACTION_OF_SYNONYM.get(name)
    if known == "":
        raise unsupported_action(name, call.at)
    if known is None and name not in _ALL_NAME_RULES and name not in KEY_OF_SYNONYM:
        raise ParseFailure(f"unknown action {call.name[:40]!r}", call.at)
    values: dict[str, Any] = arguments_by_position(name, call) if call.inline else {}
    for word, value in call.values.items():
        known = PARAMETER_OF_SYNONYM.get(word)
        if known is None:
            known = PARAMETER_OF_SYNONYM.get(fold_name(word))
            if known is None:
                raise ParseFailure(f"unknown parameter {word[:40]!r}", written.get(word, call.at))
        if not known or value is None:
            continue
        if known in values and values[known] != value:
            raise ambiguous_text(f"{known} is given twice", written.get(word, call.at))
        values[known] = value
        if word in written:
            places[known] = written[word]
    if "content" in values and values["content"] == _NO_TEXT and "input_text" in call.values:
        del values["content"]
    if "point" in values and _is_placeholder(values["point"], call):
        del values["point"]
    if "x" in values or "x1" in values or "x2" in values:
        _join_axes(values, call.at)
    turn = _ALL_NAME_RULES.get(name)
    if turn is not None:
        name = turn(values, call)
    elif name in KEY_OF_SYNONYM:
        name, values = "hotkey", {"key": KEY_OF_SYNONYM[name]}
    known = ACTION_OF_SYNONYM[name]
    if name == "press" and call.tool != PYAUTOGUI and "key" in values and "key" not in call.values:
        what = "press: held down, or pressed and let go? write press(key=...) or hotkey(key=...)"
        raise ambiguous_text(what, call.at)
    finish = FINISH_RULES.get(known)
    if finish is not None:
        known = finish(known, values, call)
    takes = ACCEPTED_PARAMETERS.get(known)
    if takes is not None and not takes.issuperset(values):
        _refuse_extra(known, values, takes, call.at)
    return known, values, places


def _is_placeholder(point: Any, call: RawCall) -> bool:
    """Tell whether a point is GUI-R1's placeholder, or an `element` in words (Holo) that is no point (AutoGLM)."""
    return point == _NO_POINT or ("element" in call.values and isinstance(point, str) and not to_numbers(point))


def _refuse_extra(name: str, values: Mapping[str, Any], takes: frozenset[str], at: int) -> None:
    for extra, value in values.items():
        if extra in takes or value in ([], "", False, "False", "false"):
            continue
        raise unsupported_action(f"{name} with {extra} {describe_value(value)[:20]}", at)


def _join_axes(values: dict[str, Any], at: int) -> None:
    """Join `x=` and `y=`, `x1=` and `y1=`, `x2=` and `y2=` to points."""
    pairs = (
        ("x", "y", "end_point" if "x2" not in values and "end_point" in values else "point"),
        ("x1", "y1", "start_point"),
        ("x2", "y2", "end_point"),
    )
    for across, down, name in pairs:
        if across in values or down in values:
            place = [values.pop(across, None), values.pop(down, None)]
            if None in place or name in values:
                raise ParseFailure(f"not a point: {describe_value(place)[:40]!r}", at)
            values["point" if name == "end_point" and across == "x" else name] = place


def _gesture(values: dict[str, Any], call: RawCall) -> str:
    """Turn CogAgent's gesture for keys together (they go down, one is pressed, they go up) into a hotkey."""
    names, keys = [], []
    for one in values.pop("actions", ()):
        name, given, _ = normalise_call(one) if isinstance(one, RawCall) else ("", {}, {})
        names.append(name)
        keys.append(given.get("key"))
    held = names.count("press")
    if names != ["press"] * held + ["hotkey"] + ["release"] * held or set(keys[:held]) != set(keys[held + 1 :]):
        raise unsupported_action("a gesture of other keys than one with others held", call.at)
    values["key"] = keys[: held + 1]
    return "hotkey"


_ALL_NAME_RULES = NAME_RULES | {"gesture": _gesture}
_ALL_NAMES = frozenset({*ACTION_OF_SYNONYM, *KEY_OF_SYNONYM, *_ALL_NAME_RULES, *COMPUTER_TOOLS})
