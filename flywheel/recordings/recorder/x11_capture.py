"""Capture input (by RECORD) and screens (by DAMAGE) from an X display, without the help of any application.

Two connections to the display for input (RECORD sends on one what the other asks for), one for the screen, one for the
time: what one waits for does not delay the other. Input, drawing and reading the screen all bear the server's own time,
in milliseconds: which screen was before which input does not depend on how soon this process gets to run.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image
from Xlib import X, Xatom
from Xlib.display import Display
from Xlib.error import CatchError, ConnectionClosedError, DisplayError, XError, xerror_class
from Xlib.ext import damage, record
from Xlib.protocol import request, rq

from flywheel.recordings.recorder.gestures import RawInput
from flywheel.recordings.recorder.keymap import KeyReader, read_held
from flywheel.recordings.recorder.windows import Box, WindowWatch
from flywheel.utils.errors import BadInput, EnvError

_SHARE = 0.08  # of a core, at most, that reading a screen takes which changes all the time
_SAVED_S = 0.1  # of such time that a still screen saves up
_ACTION_S = 0.02  # of such time for each action: what it leads to is read at once
_START_S = 10.0  # for the server to begin to send input
_IDLE_S = 0.5  # longest wait of a thread before it looks whether it should end
_FRAMES = 24  # that are held: an event may be bound to one a little before the newest
_SPANS = 64
_SETTLE = 4  # times the screen is read again where windows moved meanwhile
_CLOCK_LOOKS = 10
_CLOCK_S = 60.0  # between two looks at the server's clock
_JUMP_S = 0.5  # that input comes late before the clock is looked at
_WRAP_MS = 1 << 32  # the server's clock begins anew after 49.7 days
_KINDS = {
    X.KeyPress: "key_down",
    X.KeyRelease: "key_up",
    X.ButtonPress: "press",
    X.ButtonRelease: "release",
    X.MotionNotify: "motion",
}
_NOWHERE = (X.NotifyPointer, X.NotifyPointerRoot, X.NotifyDetailNone)  # details of a focus in no window


def open_display(name: str) -> Display:
    """Connect to the X display `name`, such as `:0`; "": that of DISPLAY. Raises BadInput where none answers."""
    try:
        display = Display(name or None)
        display.display.error_classes.update(xerror_class)  # python-xlib's RANDR puts classes in their places
        return display
    except (OSError, ConnectionClosedError, DisplayError, XError) as error:
        fix = "start the recorder within the desktop; on Wayland, within an X session (Xorg)"
        raise BadInput(f"no X display answers: {error}", where=f"DISPLAY={name}", fix=fix) from None


class ServerClock:
    """Turn the X server's milliseconds into seconds of `time.monotonic`.

    look: asks the server for its time, some times over: its milliseconds, and when the answer came (`server_times`).
    """

    def __init__(self, look: Callable[[], Iterable[tuple[int, float]]]) -> None:
        self._look = look
        self._alone = threading.Lock()
        self._last_ms = self._wraps = 0
        self._measure()

    def seconds(self, server_ms: int, received_s: float) -> float:
        """Return when an event happened, by `time.monotonic`.

        server_ms: its time by the server's clock. received_s: when it arrived, by `time.monotonic`. The clock is looked
        at anew every minute, as two machines' clocks drift, and where an event seems to have been under way for long:
        it came late, or one of the clocks jumped. An event is never later than its arrival.
        """
        with self._alone:
            delay = received_s - self._unwrapped(server_ms)
            if delay - self._offset_s > _JUMP_S or received_s - self._looked_s > _CLOCK_S:
                self._measure()
            self._offset_s = min(self._offset_s, delay)
            return received_s - delay + self._offset_s

    def _measure(self) -> None:
        self._offset_s = min(received_s - self._unwrapped(server_ms) for server_ms, received_s in self._look())
        self._looked_s = time.monotonic()

    def _unwrapped(self, server_ms: int) -> float:
        if server_ms < self._last_ms - _WRAP_MS // 2:
            self._wraps += 1
        early = server_ms > self._last_ms + _WRAP_MS // 2  # from before it began anew
        self._last_ms = self._last_ms if early else server_ms
        return (server_ms + (self._wraps - early) * _WRAP_MS) / 1000


def server_times(display: Display) -> Callable[[], Iterator[tuple[int, float]]]:
    """Return the `look` of a `ServerClock`: a function that asks the server for its time ten times.

    display: a connection that nobody else reads events of.
    """
    window = Stamps(display)

    def look() -> Iterator[tuple[int, float]]:
        for _ in range(_CLOCK_LOOKS):
            window.stamp()
            display.flush()
            while (event := display.next_event()).type != X.PropertyNotify:
                pass
            yield event.time, time.monotonic()

    return look


class Stamps:
    """Hold an unseen window, by which the server tells its time: each `stamp` leads to an event PropertyNotify."""

    def __init__(self, display: Display) -> None:
        root = display.screen().root
        self.window = root.create_window(0, 0, 1, 1, 0, X.CopyFromParent, event_mask=X.PropertyChangeMask)
        self._name = display.get_atom("WM_NAME")

    def stamp(self) -> None:
        """Ask for one event PropertyNotify with the server's time."""
        self.window.change_property(self._name, Xatom.STRING, 8, b"", X.PropModeAppend)


class Mark:
    """Send marks through `display`: once `InputCapture` tells of one, it has told all input from before the mark."""

    def __init__(self, display: Display) -> None:
        self._display, self._stamps = display, Stamps(display)
        self.window = self._stamps.window.id

    def send(self) -> None:
        """Send one mark."""
        self._stamps.stamp()
        self._display.flush()
        while self._display.pending_events():
            self._display.next_event()


@dataclass(frozen=True)
class WindowFocus:
    """Hold the event that a window gets the keyboard. window: X11's number. grab: a program takes the keyboard for a
    while, or gives it back."""

    time_s: float
    window: int
    grab: bool


class InputCapture:
    """Capture the display's input in a thread: `with InputCapture(name, clock, marks, take, other):`.

    take: called in that thread with each input, in order, its time by `time.monotonic`; no screen and label. other:
    called likewise, in the same order, with each window that gets the keyboard, and with `Mark` for each mark that was
    sent. Neither must take long. lost: why the capture ended before it was closed; "" where it did not. Raises BadInput
    where the display or RECORD is missing, EnvError where no input comes.
    """

    def __init__(
        self,
        name: str,
        clock: ServerClock,
        marks: Mark,
        take: Callable[[RawInput], None],
        other: Callable[[WindowFocus | type[Mark]], None],
    ) -> None:
        self._name, self._clock, self._marks, self._take, self._other = name, clock, marks, take, other
        self._latest_s = 0.0
        self._started = threading.Event()
        self.lost = ""

    def __enter__(self) -> InputCapture:
        self._control, self._data = open_display(self._name), open_display(self._name)
        if not self._control.has_extension("RECORD"):
            raise BadInput("the X server has no RECORD extension", where=self._name, fix="load its module `record`")
        self._keys = KeyReader(*self._mapping())
        # Device events, whichever client they go to: the recording does not end where none takes them.
        what = {
            "core_requests": (0, 0),
            "core_replies": (0, 0),
            "ext_requests": (0, 0, 0, 0),
            "ext_replies": (0, 0, 0, 0),
            "delivered_events": (0, 0),
            "device_events": (X.KeyPress, X.MotionNotify),
            "errors": (0, 0),
            "client_started": False,
            "client_died": False,
        }
        told = [
            what | {"device_events": (0, 0), "delivered_events": (kind, kind)} for kind in (X.FocusIn, X.PropertyNotify)
        ]
        self._context = self._control.record_create_context(0, [record.AllClients], [what, *told])
        self._control.sync()  # the other connection must find it
        self._thread = threading.Thread(target=self._run, name="recorder-input", daemon=True)
        self._thread.start()
        if not self._started.wait(_START_S):
            raise EnvError(self.lost or f"the X server sent no input within {_START_S:g} s", where=self._name)
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(Exception):  # the display may be gone
            self._control.record_disable_context(self._context)
            self._control.flush()
        self._thread.join(5)
        for display in (self._data, self._control):
            with contextlib.suppress(Exception):
                display.close()

    def _mapping(self) -> tuple[int, list[list[int]]]:
        first = self._control.display.info.min_keycode
        count = self._control.display.info.max_keycode - first + 1
        return first, [list(row) for row in self._control.get_keyboard_mapping(first, count)]

    def _run(self) -> None:
        try:
            self._data.record_enable_context(self._context, self._answer)
            self._data.record_free_context(self._context)
        except Exception as error:  # whatever ends the connection, the recording keeps what it has
            self.lost = f"the X display no longer answers: {type(error).__name__}: {error}"

    def _answer(self, reply: Any) -> None:
        if reply.category == record.StartOfData:
            self._started.set()  # what comes before is not recorded
        if reply.category != record.FromServer or reply.client_swapped:
            return
        received, data = time.monotonic(), reply.data
        while data:
            event, data = rq.EventField(None).parse_binary_value(data, self._data.display, None, None)
            if (kind := _KINDS.get(event.type)) is not None:
                self._latest_s = max(self._latest_s, self._clock.seconds(event.time, received))
                self._take(self._raw(kind, event, self._latest_s))
            elif event.type == X.PropertyNotify and event.window.id == self._marks.window:
                self._other(Mark)
            elif event.type == X.FocusIn and event.detail not in _NOWHERE:
                at = self._clock.seconds(reply.server_time, received)
                self._other(WindowFocus(at, event.window.id, event.mode in (X.NotifyGrab, X.NotifyUngrab)))

    def _raw(self, kind: str, event: Any, at: float) -> RawInput:
        place = {"x": event.root_x, "y": event.root_y, "held": read_held(event.state)}
        if kind in ("press", "release"):
            return RawInput(at, kind, button=event.detail, **place)
        while self._control.pending_events():
            if self._control.next_event().type == X.MappingNotify:  # another layout
                self._keys.remap(*self._mapping())
        if kind == "key_down":
            key, text = self._keys.read(event.detail, event.state)
            return RawInput(at, kind, key=key, text=text, **place)
        if kind == "key_up":
            return RawInput(at, kind, key=self._keys.key_name(event.detail), **place)
        return RawInput(at, kind, **place)


@dataclass
class Frame:
    """Hold the screen as it was read.

    spans: from when to when it is known to have been like this, by `time.monotonic`; the last one may not have ended.
    boxes: what of it must not be kept. number: of a session's screen, once an event is bound to it.
    """

    width: int
    height: int
    pixels: bytes = field(repr=False)  # BGRX
    boxes: Sequence[Box] = ()
    spans: deque[list[float]] = field(default_factory=lambda: deque(maxlen=_SPANS))
    number: int | None = None
    url: str = ""

    @property
    def time_s(self) -> float:
        """Return the time since when the screen was like this."""
        return self.spans[0][0]

    def late(self, time_s: float) -> float:
        """Return for how many seconds another screen may have been shown by `time_s`; 0: it was this one.

        Below 0: this one was read so much later.
        """
        begun = [span for span in self.spans if span[0] < time_s]
        return max(0.0, time_s - begun[-1][1]) if begun else min(time_s - self.time_s, -0.001)

    def png(self) -> bytes:
        """Encode the screen as PNG, with its boxes in black."""
        out = io.BytesIO()
        picture = Image.frombytes("RGB", (self.width, self.height), self.pixels, "raw", "BGRX")
        for left, top, width, height in self.boxes:
            picture.paste((0, 0, 0), (left, top, left + width, top + height))
        picture.save(out, "png", compress_level=1)
        return out.getvalue()


class ScreenCapture:
    """Hold the newest frames of the display, read when something was drawn: `with ScreenCapture(name, clock):`.

    excluded: patterns of windows that are not recorded; frames name where they lie. resized: counts how often the
    display changed its size. lost: why the capture ended before it was closed; "" where it did not.
    """

    def __init__(self, name: str, clock: ServerClock, excluded: Sequence[str] = ()) -> None:
        self._name, self._clock, self._excluded = name, clock, excluded
        self._frames: deque[Frame] = deque(maxlen=_FRAMES)
        self._alone = threading.Lock()  # of the connection, and what follows
        self._changed, self._moved, self._boxes = True, True, []
        self._credit_s, self._earned_s = _SAVED_S, time.monotonic()
        self._ended = threading.Event()
        self._first: queue.Queue[BaseException | None] = queue.Queue()
        self.resized = 0
        self.lost = ""

    def __enter__(self) -> ScreenCapture:
        self._thread = threading.Thread(target=self._run, name="recorder-screen", daemon=True)
        self._thread.start()
        try:
            fault = self._first.get(timeout=10)
        except queue.Empty:
            raise EnvError("the screen could not be read within 10 s", where=self._name) from None
        if fault is not None:
            raise fault
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(5)

    def before(self, time_s: float) -> Frame:
        """Return the newest frame of before `time_s`, by `time.monotonic`; the oldest that is held where none is."""
        frames = list(self._frames)
        # Where the display is gone, there is what there was.
        with self._alone, contextlib.suppress(ConnectionClosedError, OSError, XError):
            self._display.sync()  # what was drawn before is told by now
            self._read_events()
            frames = list(self._frames)
            self._credit_s += _ACTION_S
            if self._changed:
                self._grab()
        return next((frame for frame in reversed(frames) if frame.time_s < time_s), frames[0])

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height of the newest frame, in pixels."""
        return self._frames[-1].width, self._frames[-1].height

    def _run(self) -> None:
        try:
            self._open()
            self._grab()
            self._first.put(None)
            while not self._ended.is_set():
                if not self._changed:  # all that came before was taken: what comes next wakes it
                    select.select([self._display.fileno()], [], [], _IDLE_S if self._damage else 0.1)
                with self._alone:
                    self._read_events()
                    if self._changed or not self._damage:
                        self._grab()
                self._ended.wait(max(0.0, -self._credit_s / _SHARE))
        except BadInput as error:
            self._first.put(error)
        except Exception as error:  # such as a display that is unplugged: what was recorded stays
            self.lost = f"the screen no longer answers: {type(error).__name__}: {error}"
            self._first.put(EnvError(self.lost, where=self._name))
        finally:
            with contextlib.suppress(Exception):
                self._display.close()

    def _open(self) -> None:
        self._display = display = open_display(self._name)
        self._stamps, self._memory = Stamps(display), SharedImage(display)
        self._windows = WindowWatch(display, self._excluded)
        root, self._damage = display.screen().root, None
        if self._excluded:
            root.change_attributes(event_mask=X.SubstructureNotifyMask | X.PropertyChangeMask)
        if display.has_extension("DAMAGE"):
            display.damage_query_version()  # without it the extension answers nothing
            self._damage = root.damage_create(damage.DamageReportNonEmpty)

    def _read_events(self) -> tuple[list[float], float]:
        """Take the connection's events: what was drawn ends the newest frame's span. Return the stamps' times, and when
        something was drawn first."""
        stamps, drawn = [], float("inf")
        while self._display.pending_events():
            event = self._display.next_event()
            if event.type == self._display.extension_event.DamageNotify:
                self._changed = True
                drawn = min(drawn, self._clock.seconds(event.timestamp, time.monotonic()))
            elif event.type == X.PropertyNotify and event.window == self._stamps.window:
                stamps.append(self._clock.seconds(event.time, time.monotonic()))
            else:
                self._moved = True
        if self._frames:
            span = self._frames[-1].spans[-1]
            span[1] = min(span[1], max(drawn, span[0]))
        return stamps, drawn

    def _grab(self) -> None:
        """Read the screen, its place in time by a stamp before and after it, all in one message to the server."""
        now, spent = time.monotonic(), time.thread_time()
        for attempt in itertools.count():
            if self._moved and self._excluded:
                self._moved = False
                self._boxes = self._windows.excluded_boxes()
            shape = self._display.screen().root.get_geometry()
            self._read_events()
            self._changed = False
            if self._damage:
                self._display.damage_subtract(self._damage)  # what is drawn from now on is told anew
            pixels, depth = self._memory.read(shape.width, shape.height, self._stamps.stamp)
            self._display.sync()
            stamps, drawn = self._read_events()
            if not self._moved or not self._excluded or attempt == _SETTLE:
                break
        if len(pixels) != shape.width * shape.height * 4:
            fix = "use a screen of 24 bits of colour"
            raise BadInput(f"the screen's pixels have another form (depth {depth})", where=self._name, fix=fix)
        boxes = [(0, 0, shape.width, shape.height)] if self._moved and self._excluded else self._boxes
        # What was drawn before the second stamp may be on it or not, and what is drawn next is not told.
        self._add(Frame(shape.width, shape.height, pixels, boxes), [stamps[-1], max(drawn, stamps[-1])])
        self._credit_s = min(self._credit_s + _SHARE * (now - self._earned_s), _SAVED_S) - (time.thread_time() - spent)
        self._earned_s = now

    def _add(self, frame: Frame, span: list[float]) -> None:
        newest = self._frames[-1] if self._frames else None
        if newest is not None and (newest.width, newest.height) != (frame.width, frame.height):
            self.resized += 1
        if newest is None or (newest.pixels, newest.boxes) != (frame.pixels, frame.boxes):
            self._frames.append(frame)
            newest = frame
        newest.spans.append(span)


class SharedImage:
    """Read a display's screen through shared memory (MIT-SHM), or through the connection where that is refused.

    It uses no library on libX11, which ends this process where the server is gone.
    """

    def __init__(self, display: Display) -> None:
        self._display, self._at, self._size, self._segment = display, 0, 0, 0
        found = display.query_extension("MIT-SHM")
        local = display.get_display_name().startswith(":")
        self._opcode = found.major_opcode if found is not None and local else 0
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.shmat.restype = ctypes.c_void_p
        self._libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
        self._libc.shmdt.argtypes = [ctypes.c_void_p]

    def read(self, width: int, height: int, around: Callable[[], None]) -> tuple[bytes, int]:
        """Return the screen's pixels (BGRX) and its depth in bits. around: called before and after they are read."""
        root = self._display.screen().root
        size = width * height * 4
        shared = bool(self._opcode) and (size == self._size or self._attach(size))
        around()
        what = {"display": self._display.display, "defer": True, "drawable": root, "x": 0, "y": 0, "width": width}
        what |= {"height": height, "plane_mask": 0xFFFFFFFF, "format": X.ZPixmap}
        if shared:
            asked: Any = _GetShared(**what, opcode=self._opcode, segment=self._segment, offset=0)
        else:
            asked = request.GetImage(**what)
        around()
        asked.reply()
        return (ctypes.string_at(self._at, size) if shared else bytes(asked.data)), asked.depth

    def _attach(self, size: int) -> bool:
        if self._at:
            _Detach(display=self._display.display, opcode=self._opcode, segment=self._segment)
            self._libc.shmdt(self._at)
            self._at = self._size = 0
        key = self._libc.shmget(0, ctypes.c_size_t(size), 0o1600)
        if key < 0:
            return False
        self._at = self._libc.shmat(key, None, 0)
        self._segment = self._display.display.allocate_resource_id()
        refused = CatchError()
        _Attach(display=self._display.display, onerror=refused, opcode=self._opcode, segment=self._segment, key=key)
        self._display.sync()
        self._libc.shmctl(key, 0, None)  # it goes with the last of both
        if refused.get_error():
            self._opcode = 0
        else:
            self._size = size
        return not refused.get_error()


class _Attach(rq.Request):
    _request = rq.Struct(rq.Card8("opcode"), rq.Opcode(1), rq.RequestLength(), rq.Card32("segment"), rq.Card32("key"),
                         rq.Pad(4))  # fmt: skip


class _Detach(rq.Request):
    _request = rq.Struct(rq.Card8("opcode"), rq.Opcode(2), rq.RequestLength(), rq.Card32("segment"))


class _GetShared(rq.ReplyRequest):
    _request = rq.Struct(
        rq.Card8("opcode"), rq.Opcode(4), rq.RequestLength(), rq.Drawable("drawable"), rq.Int16("x"), rq.Int16("y"),
        rq.Card16("width"), rq.Card16("height"), rq.Card32("plane_mask"), rq.Card8("format"), rq.Pad(3),
        rq.Card32("segment"), rq.Card32("offset"),
    )  # fmt: skip
    _reply = rq.Struct(rq.ReplyCode(), rq.Card8("depth"), rq.Card16("sequence_number"), rq.ReplyLength(),
                       rq.Card32("visual"), rq.Card32("size"), rq.Pad(16))  # fmt: skip
