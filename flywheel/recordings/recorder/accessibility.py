"""Ask the accessibility bus (AT-SPI) what lies under the pointer, and whether the focus is in a password field.

Applications answer in their own time, and some never: each question has a deadline, and no answer is "". GTK, Qt and
Java programs have to be begun while the bus is there, Chromium and Electron ones with --force-renderer-accessibility;
others are not on it, and what is typed into them counts as secret.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from flywheel.utils.errors import BadInput

_ROOT = ("org.a11y.atspi.Registry", "/org/a11y/atspi/accessible/root")
_SCREEN = 0  # coordinates of the screen (AtspiCoordType)
_PASSWORD = 40  # AtspiRole
_SHOWING, _ACTIVE, _SELECTED = 25, 1, 23  # AtspiStateType
_MENU_ITEMS = (8, 33, 35, 45)  # AtspiRole of a check menu item, a menu, a menu item, a radio menu item
_ALL, _ANY = 1, 2  # AtspiCollectionMatchType
_LABEL_S = 0.25  # for one question of what lies at a point
_FOCUS_S = 0.1
_MOST_NODES = 256  # that one question looks at
_MOST_WINDOWS = 64
_LABEL_LENGTH = 200
_TOLD = 1000  # changes of the focus that are held
_PAUSE_S = 0.05  # longest wait between two times when all that was told is known to be heard
_BEHIND_S = 2.0  # that a question waits for that
Moment = tuple[float, float]  # after which, and before which, something happened, by `time.monotonic`


class ElementWatch:
    """Watch the focus on the accessibility bus, and ask it for elements: `with ElementWatch() as elements:`.

    keep_text: whether text is kept where nothing is known of the focused element; else it counts as a password field.
    Raises BadInput where there is no such bus, or the package jeepney is missing.
    """

    def __init__(self, keep_text: bool = False) -> None:
        self._keep_text = keep_text

    def __enter__(self) -> ElementWatch:
        self._asking, self._hearing = _connect(), _connect()
        self._alone = threading.Lock()
        self._focused: tuple[str, str] | None = None
        # After when, and before when, the focus came into a password field, another one, or where nobody tells.
        # And the number of the process that told it; 0: not known.
        self._told: deque[tuple[float, float, bool | None, int]] = deque(maxlen=_TOLD)
        self._processes: dict[str, int] = {}  # by the sender's name on the bus, which is never used again
        self._heard_s = 0.0  # all that was told until then is among it
        self._news = threading.Condition()
        self._ended = threading.Event()
        self._listen()
        self._thread = threading.Thread(target=self._hear, name="recorder-focus", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(2)
        for bus in (self._asking, self._hearing):
            bus.close()

    def in_password_field(
        self, window_s: float, start_s: float, end_s: float, process: int
    ) -> tuple[bool, list[Moment]]:
        """Tell whether the focus was in a password field when a span of time began, and when it came into one later.

        start_s, end_s: of the span, by `time.monotonic`. window_s: when the window got the focus; what was told before
        is of another one. process: number of the window's program: only it is believed that an element is no password
        field, since the program that lost the focus may tell of its own only then. Returns that, and for each later
        move into a password field after when and before when it was. An element that no program tells of counts as one
        unless `keep_text`; where the bus answers too late, (True, []).
        """
        with self._news:
            if not self._news.wait_for(lambda: self._heard_s >= end_s, _BEHIND_S):
                return True, []
        heard = [one for one in list(self._told) if one[0] <= end_s and one[1] > window_s]
        own = [one[:3] for one in heard if one[2] or (one[3] and one[3] == process)]
        told = [(0.0, window_s, None), *own]
        # An element loses the focus before another one gains it.
        known = [secret if secret is not None or n == len(told) - 1 else told[n + 1][2]
                 for n, (_, _, secret) in enumerate(told)]  # fmt: skip
        secret = [not self._keep_text if one is None else one for one in known]
        last = max((n for n, one in enumerate(told) if one[1] <= start_s), default=0)  # that surely was before
        already = any(secret[n] for n, one in enumerate(told) if n == last or (n > last and one[0] <= start_s))
        return already, [one[:2] for n, one in enumerate(told) if secret[n] and one[0] > start_s]

    def label(self, x: int, y: int) -> str:
        """Return the name, or else the role, of the element at (x, y), in pixels; "" where none is found in time."""
        until = time.monotonic() + _LABEL_S
        with self._alone:
            try:
                found = self._find(x, y, until)
            except (_NoAnswer, OSError):
                return ""
        return " ".join(found.split())[:_LABEL_LENGTH]

    # -- looking ---------------------------------------------------------------------------------------------------
    def _find(self, x: int, y: int, until: float) -> str:
        for window in self._windows(until):
            if chosen := self._menu_item(window, x, y, until):
                return chosen
            node, name = window, ""
            for _ in range(_MOST_NODES):
                arguments = ("iiu", (x, y, _SCREEN))
                (at,) = self._ask(node, "Component", "GetAccessibleAtPoint", until, *arguments)
                if at[1].endswith("/null") or tuple(at) == node:
                    break
                node = tuple(at)
                name = self._name(node, until) or name
            if node != window:
                (role,) = self._ask(node, "Accessible", "GetRoleName", until)
                return name or role
        return ""

    def _menu_item(self, window: tuple[str, str], x: int, y: int, until: float) -> str:
        """Return the name of the item of an open menu that is at the point; "" where there is none. A menu lies over
        its window, which knows only what is beneath."""
        roles = [0, 0, 0, 0]
        for role in _MENU_ITEMS:
            roles[role // 32] |= 1 << role % 32
        rule = ([1 << _SHOWING | 1 << _SELECTED, 0], _ALL, {}, _ALL, roles, _ANY, [], _ALL, False)
        try:
            form, arguments = "(aiia{ss}iaiiasib)uib", (rule, 1, _MOST_WINDOWS, True)
            (items,) = self._ask(window, "Collection", "GetMatches", until, form, arguments)
            for item in map(tuple, items):
                ((left, top, width, height),) = self._ask(item, "Component", "GetExtents", until, "u", (_SCREEN,))
                if left <= x < left + width and top <= y < top + height:
                    return self._name(item, until)
        except _NoAnswer:
            pass  # a program that cannot search
        return ""

    def _windows(self, until: float) -> Iterator[tuple[str, str]]:
        """Yield the windows that are shown, those with the focus first."""
        shown = []
        (programs,) = self._ask(_ROOT, "Accessible", "GetChildren", until)
        for program in programs[:_MOST_WINDOWS]:
            try:
                (windows,) = self._ask(tuple(program), "Accessible", "GetChildren", min(until, time.monotonic() + 0.05))
            except _NoAnswer:
                continue  # a program that hangs
            for window in windows[:_MOST_WINDOWS]:
                (words,) = self._ask(tuple(window), "Accessible", "GetState", until)
                bits = words[0] | words[1] << 32
                if bits >> _SHOWING & 1:
                    shown.append((not bits >> _ACTIVE & 1, tuple(window)))
        yield from (window for _, window in sorted(shown, key=lambda one: one[0]))

    def _name(self, node: tuple[str, str], until: float) -> str:
        (found,) = _call(
            self._asking,
            node,
            "org.freedesktop.DBus.Properties",
            "Get",
            until,
            "ss",
            ("org.a11y.atspi.Accessible", "Name"),
        )
        return str(found[1])

    def _ask(
        self, node: Sequence[str], interface: str, method: str, until: float, form: str = "", values: tuple = ()
    ) -> tuple:
        return _call(self._asking, node, f"org.a11y.atspi.{interface}", method, until, form, values)

    # -- the focus -------------------------------------------------------------------------------------------------
    def _listen(self) -> None:
        from jeepney import MatchRule, message_bus

        until = time.monotonic() + 5
        rule = MatchRule(type="signal", interface="org.a11y.atspi.Event.Object", member="StateChanged")
        rule.add_arg_condition(0, "focused")
        self._hearing.send_and_get_reply(message_bus.AddMatch(rule), timeout=5)
        registry = (_ROOT[0], "/org/a11y/atspi/registry")
        event = ("object:state-changed:focused", [], "")
        _call(self._hearing, registry, "org.a11y.atspi.Registry", "RegisterEvent", until, "sass", event)

    def _hear(self) -> None:
        try:
            self._follow_focus()
        finally:
            # Nobody tells any more where the focus is: nothing is kept.
            self._told.append((self._heard_s, float("inf"), True, 0))
            self._hear_until(float("inf"))

    def _hear_until(self, time_s: float) -> None:
        with self._news:
            self._heard_s = time_s
            self._news.notify_all()

    def _follow_focus(self) -> None:
        while not self._ended.is_set():
            begun = time.monotonic()
            try:
                message = self._hearing.receive(timeout=0)
            except TimeoutError:
                self._hear_until(begun)
                with contextlib.suppress(TimeoutError, OSError):
                    self._follow(self._hearing.receive(timeout=_PAUSE_S))
            except OSError:
                return  # the bus is gone
            else:
                self._follow(message)

    def _follow(self, message: Any) -> None:
        from jeepney import HeaderFields, MessageType

        fields = message.header.fields
        if message.header.message_type != MessageType.signal or fields.get(HeaderFields.member) != "StateChanged":
            return
        node = (fields[HeaderFields.sender], fields[HeaderFields.path])
        now, secret = time.monotonic(), None
        if bool(message.body[1]):
            secret, self._focused = self._is_password(node), node
        elif node == self._focused:
            self._focused = None
        else:
            return
        self._told.append((self._heard_s, now, secret, self._process(node[0])))

    def _process(self, sender: str) -> int:
        """Return the number of the process that has this name on the bus; 0 where that is not told in time."""
        if sender not in self._processes:
            bus, until = ("org.freedesktop.DBus", "/org/freedesktop/DBus"), time.monotonic() + _BEHIND_S
            try:
                with self._alone:
                    (found,) = _call(self._asking, bus, bus[0], "GetConnectionUnixProcessID", until, "s", (sender,))
            except (_NoAnswer, OSError):
                return 0
            self._processes[sender] = found
        return self._processes[sender]

    def _is_password(self, node: tuple[str, str]) -> bool:
        try:
            with self._alone:
                (role,) = self._ask(node, "Accessible", "GetRole", time.monotonic() + _FOCUS_S)
        except (_NoAnswer, OSError):
            return True  # what cannot be told is not kept
        return role == _PASSWORD


class _NoAnswer(Exception):
    """Say that an application did not answer in time, or refused."""


def _connect() -> Any:
    try:
        from jeepney.io.blocking import open_dbus_connection
    except ImportError:
        fix = "pip install 'flywheel[record]'"
        raise BadInput("the package jeepney is not installed", where="flywheel record", fix=fix) from None
    try:
        session = open_dbus_connection("SESSION")
        node = ("org.a11y.Bus", "/org/a11y/bus")
        (address,) = _call(session, node, "org.a11y.Bus", "GetAddress", time.monotonic() + 5)
        on = ("org.a11y.Status", "IsEnabled", ("b", True))  # Chromium and Electron look at it when they begin
        _call(session, node, "org.freedesktop.DBus.Properties", "Set", time.monotonic() + 5, "ssv", on)
        session.close()
        return open_dbus_connection(address)
    except KeyError:
        fix = "start the recorder within the desktop's session"
        raise BadInput("DBUS_SESSION_BUS_ADDRESS is not set", where="flywheel record", fix=fix) from None
    except (_NoAnswer, OSError, ValueError) as error:
        fix = "apt-get install at-spi2-core, and start the recorder within the desktop's session"
        raise BadInput(f"no accessibility bus answers: {error}", where="flywheel record", fix=fix) from None


def _call(
    bus: Any, node: Sequence[str], interface: str, method: str, until: float, form: str = "", values: tuple = ()
) -> tuple:
    from jeepney import DBusAddress, MessageType, new_method_call

    message = new_method_call(DBusAddress(node[1], node[0], interface), method, form or None, values)
    left = until - time.monotonic()
    if left <= 0:
        raise _NoAnswer("no time is left")
    try:
        reply = bus.send_and_get_reply(message, timeout=left)
    except TimeoutError:
        raise _NoAnswer(f"{method} was not answered") from None
    if reply.header.message_type == MessageType.error:
        raise _NoAnswer(f"{method} was refused: {' '.join(map(str, reply.body))[:200]}")
    return reply.body
