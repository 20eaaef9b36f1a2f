"""Record a person's work on an X display into a folder, and make a session of such a folder, a browser's too.

While it records, each input is a line of `input.jsonl` and each screen that an input acts on a file in `screens/`, both
written as they come: a killed recorder loses a second. `finish_recording` makes the session, also of what a killed one
left. What must not be kept is never written: text of password fields, all that is done in excluded windows, the
pictures of these.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import queue
import shutil
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from Xlib.error import ConnectionClosedError, DisplayError

from flywheel.envs.base import Task
from flywheel.envs.tasks.drawing import task_to_row
from flywheel.recordings.audio import SAMPLE_RATE
from flywheel.recordings.recorder import microphone
from flywheel.recordings.recorder.accessibility import Moment
from flywheel.recordings.recorder.gestures import HIDDEN_TEXT, MODIFIERS, SCROLL_S, GestureReader, RawInput
from flywheel.recordings.recorder.keymap import explain_missing_xkbcommon
from flywheel.recordings.recorder.windows import Window, WindowWatch
from flywheel.recordings.recorder.x11_capture import (
    InputCapture,
    Mark,
    ScreenCapture,
    ServerClock,
    WindowFocus,
    open_display,
    server_times,
)
from flywheel.recordings.session import InputEvent, ScreenFrame, SessionMeta, SessionOutcome, write_session
from flywheel.utils.errors import BadInput, DataError, errors_of_place
from flywheel.utils.files import write_json

WORLD = "desktop"  # of tasks that a person set themselves
_LAST_S = 0.01  # that the end, which is an action too, takes
_FLUSH_S = 0.2  # between two writes to the disk that are waited for
_WAITING = 16  # frames that wait to be encoded; with more, input waits: later screens may be late
# Until an input is kept: applications tell after a while that the focus is in a password field, and the later, the more
# programs wait for a core. From so many of them a core on, the wait grows with them, up to the most.
_HOLD_S, _HOLD_AT_MOST_S, _WAITING_PROGRAMS = 0.8, 3.0, 3.0
_DWELL_S = 0.15  # that the focus stays in a field at the least, for all applications to tell of it
_ASK_S = 0.25  # after a click: what lies there may be another element by then
_LEAST_FREE_MB = 200  # on the disk
_WHEEL_FROM = 4
_MOVES = 1000
_IN_HIDDEN = {"Backspace", "Delete", "ArrowLeft", "ArrowRight", "Home", "End", "CapsLock"}
_LEVELS = {"", "Shift"}  # keys that change what the next one types, and move no focus


@dataclass(frozen=True)
class RecordingOptions:
    """Hold what is recorded, and who records it.

    instruction: what the person sets out to do. annotator, level: the person's name, and `expert` or `novice`. domain:
    of `synthesis.domains`. display: of X11; "": DISPLAY. speech: whether the microphone is heard. excluded: patterns
    (`fnmatch`) of classes or titles of windows that are not recorded; in a browser, of hosts or addresses. pause_key,
    stop_key: of the keyboard, in lower case, modifiers first, such as `ctrl shift f9`.
    """

    instruction: str
    annotator: str
    domain: str = "computer"
    level: str = "expert"
    display: str = ""
    speech: bool = True
    excluded: tuple[str, ...] = ()
    pause_key: str = "ctrl shift f9"
    stop_key: str = "ctrl shift f10"


@dataclass
class RecordingStats:
    """Hold the counts of a recording so far. inputs: without movements of the pointer. late: actions whose screen may
    be another one. hidden: keys whose text is not kept. stretches: of such keys, each one line. excluded: inputs left
    out in excluded windows or sites, and during pauses. paused: whether it pauses now. notes: what could not be
    recorded, in words."""

    inputs: int = 0
    screens: int = 0
    late: int = 0
    hidden: int = 0
    stretches: int = 0
    excluded: int = 0
    paused: bool = False
    notes: list[str] = field(default_factory=list)


@contextlib.contextmanager
def hold_recording(folder: Path) -> Iterator[None]:
    """Hold a recording's folder within the block, so that nobody else decides on it meanwhile.

    A process that ends holds nothing. Raises BadInput where another one is at work on it, or records it.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = "this recording is still at work, or somebody looks it through"
            raise BadInput(what, where=folder, fix="end that first") from None
        yield
    finally:
        os.close(handle)


def is_recording_held(folder: Path) -> bool:
    """Tell whether somebody holds the recording's folder (`hold_recording`)."""
    try:
        with hold_recording(folder):
            return False
    except BadInput:
        return True


class RecordingWriter:
    """Write the folder of a recording as its inputs come: the base of the recorders. stats: its counts. stopped: an
    event that is set to end it.

    A recorder of one kind of screen derives from it: it opens and closes the folder, binds screens to the inputs that
    begin an action, and gives `_keep` each input that may be kept. Its frames have `number`, `time_s`, `width`,
    `height`, `url`, and `png` without what is not to be seen.
    """

    def __init__(self, folder: Path, options: RecordingOptions) -> None:
        self.folder, self._options = folder, options
        self.stats = RecordingStats()
        self.stopped = threading.Event()
        self._encode: queue.Queue[Any] = queue.Queue(_WAITING)
        self._fault = ""  # why what was recorded can no longer be written
        self._was: RawInput | None = None  # the last input that may begin an action
        self._gap = False  # something after the last input was not kept
        self._hiding = False  # the last text that was kept is hidden
        self._sound: microphone.Microphone | None = None

    def _open_folder(self, width: int, height: int, about: Mapping[str, Any]) -> None:
        """Make the folder and begin to write. width, height: of the screen in pixels. about: further facts."""
        with errors_of_place(self.folder):
            (self.folder / "screens").mkdir(parents=True)
        self._folder_hold = contextlib.ExitStack()
        self._folder_hold.enter_context(hold_recording(self.folder))
        self._began, started = time.monotonic(), datetime.now(UTC)
        self._width, self._height = width, height
        try:
            self._sound = microphone.start_microphone(self.folder / microphone.FILE) if self._options.speech else None
        except BadInput:
            shutil.rmtree(self.folder)
            self._folder_hold.close()
            raise
        sync_s = None if self._sound is None else self._sound.began_s - self._began
        facts = {**asdict(self._options), "width": width, "height": height, **about, "sync_s": sync_s}
        write_json(self.folder / "about.json", facts | {"started_at": started.isoformat()})
        self._inputs = (self.folder / "input.jsonl").open("a", encoding="utf-8")
        self._listed = (self.folder / "screens.jsonl").open("a", encoding="utf-8")
        self._writers = _start_threads(self._write_screens, self._flush)

    def _close_folder(self, lost: Sequence[str], resized: int) -> None:
        """Write what waits, and how it ended. lost: why nothing more could be recorded. resized: how often the screen
        changed its size."""
        self._encode.put(None)
        for thread in self._writers:
            thread.join()
        if self._sound:
            self._sound.stop()
        end = {"seconds": time.monotonic() - self._began, "resized": resized, "notes": self.stats.notes}
        write_json(self.folder / "end.json", {**end, "lost": lost})
        for file in (self._inputs, self._listed):
            file.close()
        self._folder_hold.close()

    def _why_lost(self) -> list[str]:
        """List why nothing more can be recorded; []: it can."""
        return [self._fault] if self._fault else []

    def wait(self, seconds: float | None = None, tell: Callable[[bool], None] = lambda paused: None) -> str:
        """Wait until the recording is stopped, its screen is gone, or the disk is nearly full; return why, in words.

        seconds: at most; None: without a limit. tell: called each time that it begins to pause, or goes on.
        """
        until, paused = None if seconds is None else time.monotonic() + seconds, False
        while not self.stopped.wait(0.2):
            if paused != (paused := self.stats.paused):
                tell(paused)
            if lost := self._why_lost():
                return lost[0]
            if shutil.disk_usage(self.folder).free < _LEAST_FREE_MB << 20:
                return f"less than {_LEAST_FREE_MB} MB are free on the disk"
            if until is not None and time.monotonic() > until:
                return f"{seconds:g} s are over"
        return "it was stopped"

    # -- input -------------------------------------------------------------------------------------------------------
    def _obey(self, one: RawInput) -> bool:
        """Tell whether the input is the recorder's own key, and do what it says."""
        if one.kind != "key_down":
            return False
        command = _describe_keys(one)
        if command == self._options.stop_key:
            self.stopped.set()
        elif command == self._options.pause_key:
            self.stats.paused = not self.stats.paused
            if self._sound:
                self._sound.muted = self.stats.paused
        return command in (self._options.pause_key, self._options.stop_key)

    def _leave_out(self) -> None:
        """Count an input that is not kept: nothing goes on over it."""
        self.stats.excluded += 1
        self._gap, self._hiding, self._was = True, False, None

    def _without_secret(self, one: RawInput, secret: Callable[[], bool]) -> RawInput | None:
        """Return the input as it may be kept: of keys in a password field, that there were some. secret: tells whether
        a key may have been pressed in one. A command, such as Ctrl+S or F5, types nothing and is kept; a letter with
        Ctrl and Alt may be what AltGr types on another keyboard."""
        if one.kind not in ("key_down", "key_up"):
            self._hiding = False
            return one
        if one.key in MODIFIERS and one.key != "Shift":
            return one
        if one.key in ("Enter", "Tab", "Escape") or not secret():
            self._hiding &= one.kind == "key_up"
            return one
        self.stats.hidden += 1
        again, typed = self._hiding, one.kind == "key_down" and one.key != "Shift" and one.key not in _IN_HIDDEN
        if typed and _types_nothing(one):
            self._hiding = False
            return one
        if not typed or again:  # one line, so that the length is not told
            return None
        self._hiding = True
        self.stats.stretches += 1
        return replace(one, key="", text=HIDDEN_TEXT, held=())

    def _begins_action(self, one: RawInput) -> bool:
        """Tell whether the screen before this input may be that of an action: not within text, nor a turn of the
        wheel."""
        was = self._was
        if one.kind in ("release", "key_up") or one.key in MODIFIERS:
            return False
        self._was = one
        if one.kind == "press" and one.button >= _WHEEL_FROM:
            same = was is not None and was.kind == "press" and was.button == one.button
            return not (same and one.time_s - was.time_s <= SCROLL_S)
        return one.kind != "page" and not (was is not None and _is_text(was) and _is_text(one))

    def _bind(self, frame: Any) -> int:
        """Return the number of a frame's screen, which is written once."""
        if frame.number is None:
            frame.number = self.stats.screens
            self.stats.screens += 1
            self._encode.put(frame)
        return frame.number

    def _keep(self, one: RawInput) -> None:
        """Write an input, without what is secret of it."""
        if self._gap:
            self._gap = False
            self._keep(RawInput(one.time_s, "page"))
        kept = replace(one, time_s=one.time_s - self._began)
        row = {name: value for name, value in asdict(kept).items() if value or name == "time_s"}
        row |= {"screen": kept.screen} if kept.screen is not None else {}
        self._inputs.write(json.dumps(row, ensure_ascii=False) + "\n")
        self.stats.inputs += kept.kind != "page"

    # -- threads ---------------------------------------------------------------------------------------------------
    def _write_screens(self) -> None:
        while (frame := self._encode.get()) is not None:
            if self._fault:
                continue  # the queue is emptied, so that nobody waits for it
            try:
                self._write_screen(frame)
            except (OSError, ValueError) as error:
                self._fault = f"a screen cannot be written: {error}"

    def _write_screen(self, frame: Any) -> None:
        png = frame.png()
        with (self.folder / "screens" / f"{frame.number:06d}.png").open("wb") as file:
            file.write(png)
        about = {"screen": frame.number, "time_s": frame.time_s - self._began, "width": frame.width}
        about |= {"url": frame.url} if frame.url else {}
        about |= {"height": frame.height, "sha256": hashlib.sha256(png).hexdigest()}
        self._listed.write(json.dumps(about) + "\n")
        self._listed.flush()

    def _flush(self) -> None:
        while not self.stopped.wait(_FLUSH_S):
            try:
                self._inputs.flush()
                os.fdatasync(self._inputs.fileno())
            except OSError as error:
                self._fault = f"the input cannot be written: {error}"
                return


@dataclass
class _Held:
    """Hold an input that is not kept yet; one of kind `page` stands for one that is left out. due_s: when it is to be,
    by `time.monotonic`. window_s: since when the window has the focus. process: of the window's program. at: the
    pointer, in pixels of the screen as it was then."""

    one: RawInput
    due_s: float
    window_s: float
    process: int
    label: str = ""
    at: tuple[int, int] = (0, 0)


class Recorder(RecordingWriter):
    """Record an X display into `folder`, which it makes, until it is stopped: `with Recorder(...)`.

    Its stop key, or whoever sets `stopped`, ends it. hidden: tells when the focus was in a password field
    (`ElementWatch.in_password_field`). label: names the element at a point (`ElementWatch.label`). Both are None where
    there is no accessibility bus. Raises BadInput where the display, its extensions or the microphone are missing, or
    `folder` exists; EnvError where the screen cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        options: RecordingOptions,
        hidden: Callable[[float, float, float, int], tuple[bool, list[Moment]]] | None = None,
        label: Callable[[int, int], str] | None = None,
    ) -> None:
        if missing := explain_missing_xkbcommon():
            raise BadInput(missing, where="flywheel record")
        super().__init__(folder, options)
        self._hidden, self._label = hidden, label
        self._taken: queue.Queue[RawInput | WindowFocus | type[Mark] | None] = queue.Queue()
        self._held: deque[_Held] = deque()
        self._moves: deque[float] = deque(maxlen=_MOVES)  # when an input may have moved the focus
        self._ask: queue.Queue[_Held | None] = queue.Queue()
        self._excluded: deque[Moment] = deque(maxlen=_MOVES)  # when an excluded window was seen to have the focus
        self._focus: tuple[float, Window | None] = (0.0, None)

    # -- life ----------------------------------------------------------------------------------------------------
    def __enter__(self) -> Recorder:
        options = self._options
        self._display = open_display(options.display)
        self._windows, self._marks = WindowWatch(self._display, options.excluded), Mark(self._display)
        self._times = open_display(options.display)
        clock = ServerClock(server_times(self._times))
        self._screens = ScreenCapture(options.display, clock, options.excluded).__enter__()
        self._open_folder(*self._screens.size, {})
        self._shown = self._screens.size
        self._keeper, self._namer = _start_threads(self._keep_inputs, self._find_labels)
        self._capture = InputCapture(options.display, clock, self._marks, self._taken.put, self._taken.put).__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        self._capture.__exit__()
        self._taken.put(None)
        self._keeper.join()
        self._ask.put(None)
        self._namer.join()
        lost = self._why_lost()
        if not self.stats.paused and not lost:
            self._bind(self._screens.before(time.monotonic()))  # what the work led to
        self._screens.__exit__()
        for display in (self._display, self._times):
            with contextlib.suppress(OSError, ConnectionClosedError, DisplayError):  # the display may be gone
                display.close()
        self._close_folder(lost, self._screens.resized)

    def _why_lost(self) -> list[str]:
        return [why for why in (self._capture.lost, self._screens.lost) if why] + super()._why_lost()

    # -- input, in a thread of its own --------------------------------------------------------------------------------
    def _keep_inputs(self) -> None:
        try:
            self._hold_inputs()
        except Exception as error:  # whatever it is, the recording ends and says so
            self._fault = f"the input can no longer be kept: {type(error).__name__}: {error}"

    def _hold_inputs(self) -> None:
        """Take what the display's thread gave, at once; keep it once nobody can say any more that it is secret."""
        marked_s = known_s = 0.0  # when the last mark was sent; until when all input is known
        ended = float("inf")
        while known_s < ended or self._held:
            due_s = self._held[0].due_s if self._held else ended
            wait_s: float | None = None if due_s == ended else max(0.0, due_s - time.monotonic())
            try:
                if wait_s == 0 and known_s < ended:
                    wait_s = None  # for the mark
                    if marked_s < due_s:
                        marked_s = time.monotonic()
                        self._marks.send()
                taken = self._taken.get(timeout=wait_s)
                if taken is Mark or taken is None:
                    known_s = marked_s if taken else ended
                elif isinstance(taken, WindowFocus):
                    self._focus = self._follow_focus(taken)
                else:
                    self._take(taken)
            except (queue.Empty, ConnectionClosedError, DisplayError, OSError):
                pass  # nothing is due yet, or the display is gone, which its own thread tells
            while self._held and self._held[0].due_s <= min(known_s, time.monotonic()):
                self._release(self._held.popleft())

    def _follow_focus(self, told: WindowFocus) -> tuple[float, Window | None]:
        window, (since_s, before) = self._windows.holder(told.window), self._focus
        same = before is not None and window is not None and before.number == window.number
        return (since_s if same or told.grab else told.time_s), window

    def _in_excluded(self) -> bool:
        if not self._options.excluded:
            return False
        (since_s, window), active = self._focus, self._windows.active()
        nowhere = since_s and window is None  # as while a window manager has it, on the way to another window
        if found := bool(nowhere) or self._windows.is_excluded(window) or self._windows.is_excluded(active):
            self._excluded.append((time.monotonic(), time.monotonic()))
        return found

    def _take(self, one: RawInput) -> None:
        if one.kind == "motion" or self._obey(one):
            return
        since_s, window = self._focus
        held = _Held(one, one.time_s + input_wait_s(), since_s, window.process if window else 0)
        if self.stats.paused or self._in_excluded():
            held.one, self._was = RawInput(one.time_s, "page"), None
            self._held.append(held)
            return
        still = _is_text(one) or one.key in _IN_HIDDEN or one.key in _LEVELS
        if one.kind == "press" or (one.kind == "key_down" and not still):
            self._moves.append(one.time_s)
        held.at = (one.x, one.y)
        if self._begins_action(one):
            frame = self._screens.before(one.time_s)
            late = round(frame.late(one.time_s), 4)
            self.stats.late += late != 0
            self._shown = (frame.width, frame.height)
            held.one = replace(self._placed(one), screen=self._bind(frame), late=late)
            if self._label and one.kind == "press":
                self._ask.put(held)
        else:
            held.one = self._placed(one)
        self._held.append(held)

    def _placed(self, one: RawInput) -> RawInput:
        """Return the input with its place on a screen of the first size, where the screen has another one by now."""
        if self._shown == (self._width, self._height):
            return one
        x, y = (round(at * size / now) for at, size, now in zip((one.x, one.y), (self._width, self._height),
                                                                self._shown, strict=True))  # fmt: skip
        return replace(one, x=x, y=y)

    def _release(self, held: _Held) -> None:
        """Keep an input, or leave it out."""
        with contextlib.suppress(ConnectionClosedError, DisplayError, OSError):  # the display may be gone
            self._in_excluded()
        seen = [moment for moment in self._excluded if held.one.time_s < moment[0] <= held.due_s]
        if held.one.kind == "page" or self._comes_before(held.one.time_s, seen, held.due_s - held.one.time_s):
            self._leave_out()
        elif kept := self._without_secret(held.one, lambda: self._is_secret(held)):
            self._keep(replace(kept, label=held.label))

    def _is_secret(self, held: _Held) -> bool:
        """Tell whether the focus may have been in a password field at the time of an input."""
        time_s, span_s = held.one.time_s, held.due_s - held.one.time_s
        if self._hidden is None:
            return False
        already, came = self._hidden(held.window_s, time_s, held.due_s, held.process)
        # Where the focus went on at once, as with a program that types, some applications never tell of it.
        # Moves of the same millisecond may have been before or after.
        edges = [0.0, *(move for move in self._moves if abs(move - time_s) < _DWELL_S), float("inf")]
        passing = any(a <= time_s <= b and b - a < _DWELL_S for a, b in pairwise(edges))
        return already or passing or self._comes_before(time_s, came, span_s)

    def _comes_before(self, time_s: float, told: Sequence[Moment], span_s: float) -> bool:
        """Tell whether the focus may have been, at `time_s`, where it is told to have come later.

        It is told later than it happens: what was done since an input that may have moved the focus counts, where that
        is within `span_s` of being told.
        """
        moves = [[move for move in self._moves if after - span_s <= move <= before] for after, before in told]
        return any(not within or within[0] <= time_s for within in moves)

    def _find_labels(self) -> None:
        while (held := self._ask.get()) is not None:
            if time.monotonic() - held.one.time_s <= _ASK_S:
                held.label = self._label(*held.at)


def input_wait_s() -> float:
    """Return how many seconds an input waits before it is written, longer while many programs wait for a core."""
    try:
        waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return _HOLD_AT_MOST_S
    return min(_HOLD_AT_MOST_S, _HOLD_S * max(1.0, waiting / _WAITING_PROGRAMS))


def _start_threads(*works: Callable[[], None]) -> list[threading.Thread]:
    """Start a thread for each function."""
    threads = [threading.Thread(target=work, name=f"recorder{work.__name__}", daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


def _describe_keys(one: RawInput) -> str:
    """Return a key with its modifiers as the options name it: lower case, modifiers first."""
    return " ".join([*(name.lower() for name in one.held), one.key.lower()]).replace("control", "ctrl")


def _is_text(one: RawInput) -> bool:
    """Tell whether a pressed key types text: no command with it."""
    return one.kind == "key_down" and bool(one.text) and not _holds_command(one)


def _holds_command(one: RawInput) -> bool:
    return any(name != "Shift" for name in one.held)


def _types_nothing(one: RawInput) -> bool:
    """Tell whether a pressed key is a command, or one with a name; part of a compose sequence has none."""
    return bool(one.key) and (not one.text or (_holds_command(one) and not {"Control", "Alt"} <= set(one.held)))


# Of a folder that was recorded into, a session.


Stretch = tuple[float, float]  # from, to: seconds since the recording began


def finish_recording(
    folder: Path, target: Path, *, done: bool, answer: str = "", cut: Sequence[Stretch] = ()
) -> SessionMeta:
    """Make a session of the recording in `folder`, also of one whose recorder was killed.

    target: folder of the session, made whole or not at all. done: whether the person's task is done. answer: what the
    person would answer. cut: stretches of which nothing is kept, (from, to) in seconds since the recording began;
    of the sound also what comes before one, from the last input that is kept on: one speaks before one acts.
    Returns what the session's `session.json` says. `folder` stays. Raises BadInput where it is no recording, or
    `target` exists; DataError where there is no input or no screen in it, or a damaged file; OSError where `target`
    cannot be written.
    """
    end_s, about = read_length(folder)
    if target.exists():
        raise BadInput("there is such a session already", where=target, fix="choose another name")
    screens = {row["screen"]: row for row in _read_lines(folder / "screens.jsonl")}
    pictures = [n for n, row in screens.items() if _read_screen(folder, row) is not None]
    events = read_events(folder, cut)
    if not events or not pictures:
        raise DataError("nothing was done in this recording", where=folder, fix="record again, or remove it")
    seconds = round(max(end_s, events[-1].time_s), 4)
    # The screen at the end; where that is cut, the last one that an action shows.
    shown = [n for n in pictures if not _is_cut(screens[n]["time_s"], cut)] if not _is_cut(end_s - 0.01, cut) else []
    there = set(pictures)
    acted = [event.screen for event in events if event.screen in there]
    last = InputEvent(seconds, "stop", text=answer, screen=max(shown or acted or pictures))
    events = list(_with_screens([*events, last], there))
    used = sorted({event.screen for event in events if event.screen is not None})
    numbers = {old: new for new, old in enumerate(used)}
    events = [replace(one, screen=None if one.screen is None else numbers[one.screen]) for one in events]
    samples = microphone.read_sound(folder / microphone.FILE)
    for start, end in _widen_to_inputs(folder, cut) if len(samples) else ():
        first, last = (max(0, round((at - about["sync_s"]) * SAMPLE_RATE)) for at in (start, end))
        samples[first:last] = 0
    meta = SessionMeta(
        session=target.name,
        annotator=about["annotator"],
        level=about["level"],
        task=task_to_row(_make_task(about, len(events))),
        width=about["width"],
        height=about["height"],
        audio="speech.opus" if len(samples) else "",
        sync_s=about["sync_s"] if len(samples) else None,
        started_at=about["started_at"],
        seconds=seconds + _LAST_S,
        outcome=SessionOutcome(terminated=True, reward=float(done), state={"done": done}),
    )
    frames = (_frame(folder, screens[n]) for n in used)  # eight hours of them have no room in memory
    building = target.with_name(f".{target.name}.part")
    shutil.rmtree(building, ignore_errors=True)
    try:
        write_session(building, meta, events, frames, samples)
        building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return meta


def read_length(folder: Path) -> tuple[float, dict[str, Any]]:
    """Return the length of the recording in `folder`, in seconds, and the content of its about.json.

    One whose recorder was killed lasts until its last input, or as long as its sound. Raises BadInput for a folder that
    is no recording, DataError for a damaged file.
    """
    about = _read_json(folder / "about.json")
    if about is None:
        raise BadInput("this is no recording: it has no about.json", where=folder, fix="name one that was recorded")
    end = _read_json(folder / "end.json")
    for name, held, wanted in (("about.json", about, {"width", "height"}), ("end.json", end, {"seconds"})):
        if held is not None and (lacks := sorted(wanted - held.keys())):
            raise DataError(f"it lacks {', '.join(lacks)}", where=folder / name)
    if end:
        return end["seconds"], about
    inputs, sound_s = read_inputs(folder), microphone.read_sound_length(folder / microphone.FILE)
    heard_s = about["sync_s"] + sound_s if sound_s and about.get("sync_s") is not None else 0.0
    return max(inputs[-1].time_s + 0.01 if inputs else 0.0, heard_s), about


def read_events(folder: Path, cut: Sequence[Stretch] = ()) -> list[InputEvent]:
    """Read the recording in `folder` as a session's events, in order, without the stretches `cut`.

    cut: as for `finish_recording`. Screens have the recording's numbers. Raises BadInput for a folder that is no
    recording, otherwise as `read_inputs`.
    """
    _, about = read_length(folder)
    reader = GestureReader(about["width"], about["height"])
    inputs = (one for one in read_inputs(folder) if not _is_cut(one.time_s, cut))
    return [event for one in inputs for event in reader.feed(one)] + list(reader.flush())


def read_inputs(folder: Path) -> list[RawInput]:
    """Read the raw inputs of the recording in `folder`, in order; [] where it has none.

    Raises DataError for a line that is no input.
    """
    path, found = folder / "input.jsonl", []
    for number, row in enumerate(_read_lines(path), 1):
        try:
            found.append(RawInput(**row | {"held": tuple(row.get("held", ()))}))
        except (TypeError, AttributeError):
            raise DataError("this line is no input", where=f"{path}, line {number}", fix="remove it") from None
    return found


def _widen_to_inputs(folder: Path, cut: Sequence[Stretch]) -> list[Stretch]:
    """Return the stretches, each from the last input before it on that is kept."""
    kept = [one.time_s for one in read_inputs(folder) if not _is_cut(one.time_s, cut)] if cut else []
    return [(max((at for at in kept if at < start), default=0.0), end) for start, end in cut]


def _is_cut(time_s: float, cut: Sequence[Stretch]) -> bool:
    return any(start <= time_s < end for start, end in cut)


def describe_dropped(folder: Path) -> Counter[str]:
    """Count the inputs of the recording in `folder` that no session's event can hold, by their name in words.

    Empty where there are none. Raises as `read_inputs`.
    """
    about = _read_json(folder / "about.json") or {"width": 1, "height": 1}
    reader = GestureReader(about["width"], about["height"])
    for one in read_inputs(folder):
        list(reader.feed(one))
    return Counter(reader.dropped)


def _with_screens(events: Sequence[InputEvent], there: Set[int]) -> Iterator[InputEvent]:
    """Yield the events; one whose screen was not kept gets the newest one before it. there: the numbers of screens."""
    newest = min(there)
    for number, event in enumerate(events):
        if event.screen in there:
            newest = event.screen
        follows = event.kind == "drop" or (event.kind == "key" and event.key == "Enter" and event.screen is None)
        typed_before = number > 0 and events[number - 1].kind in ("type", "drag")
        yield event if follows and typed_before else replace(event, screen=newest)


def _make_task(about: dict[str, Any], steps: int) -> Task:
    identity = hashlib.sha256(f"{about['instruction']} {about['annotator']} {about['started_at']}".encode()).hexdigest()
    return Task(
        "k" + identity[:15],
        about["domain"],
        about.get("world", WORLD),
        "recorded",
        1,
        0,
        about["instruction"],
        {"url": about["url"]} if "url" in about else {},
        max(2 * steps, 10),
        "train",
        verifier="",
        threshold=1.0,
        checksum=identity,
        environment="recorded",
    )


def _read_screen(folder: Path, row: Mapping[str, Any]) -> bytes | None:
    """Return the PNG of a row of screens.jsonl; None where it is missing, or not whole."""
    path = folder / "screens" / f"{row['screen']:06d}.png"
    png = path.read_bytes() if path.is_file() else b""
    return png if hashlib.sha256(png).hexdigest() == row["sha256"] else None


def _frame(folder: Path, row: Mapping[str, Any]) -> ScreenFrame:
    png = _read_screen(folder, row)
    if png is None:
        raise DataError(f"screen {row['screen']} has changed meanwhile", where=folder, fix="leave it alone, and go on")
    return ScreenFrame(row["time_s"], row["sha256"], row.get("url", WORLD), row["width"], row["height"], "png", png)


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DataError("this file is damaged", where=path, fix="restore it, or remove the recording")
    return found


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON lines; the last one may have been cut off by a kill."""
    if not path.is_file():
        return
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except ValueError:
            if number < len(lines) - 1:
                raise DataError("this line is no JSON", where=f"{path}, line {number + 1}", fix="remove it") from None
            return
