"""Emulate the screen of an xterm, without colours, to tell what a terminal shows after what programs printed.

It supports the sequences that programs use where TERM is `xterm`: scrolling, cursor movements, erasing, inserting and
deleting, and the second screen of full-screen programs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_TAB = 8
_MAX_NUMBER = 9999  # of a number in a sequence
# A run of plain characters; a sequence: CSI, a string (OSC, DCS, ...), a charset, a single escape; a control character.
_TOKEN = re.compile(
    r"(?P<text>[^\x00-\x1f\x7f\x80-\x9f]+)"
    r"|\x1b\[(?P<csi>[0-?]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    r"|(?P<string>\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\))"
    r"|\x1b(?P<charset>[()*+])(?P<set>.)"
    r"|\x1b(?P<escape>[0-Z\\`-~]|[ -'\-./].)"
    r"|(?P<broken>\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*|[()*+]?)(?=\x1b[^\\]|(?<![\]PX^_])[\x00-\x1a\x1c-\x1f]))"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f\x80-\x9f])",
    re.DOTALL,
)
_LONGEST = 4096  # characters of a sequence whose end has not come
_LINE_CHARACTERS = str.maketrans("jklmnqtuvwx`afgoyz{|}~", "┘┐┌└┼─├┤┴┬│◆▒°±⎺≤≥π≠£·")


class TerminalEmulator:
    """Emulate a terminal's screen. rows, columns: its size in characters."""

    def __init__(self, rows: int, columns: int) -> None:
        self._rows, self._columns = rows, columns
        self._pending = ""
        self._saved: tuple[int, int] = (0, 0)
        self._main: tuple[list[list[str]], tuple[int, int]] | None = None  # the first screen, while the second is shown
        self._last, self._drawing = " ", False
        self._reset()

    @property
    def full_screen(self) -> bool:
        """Tell whether a full-screen program, such as an editor, shows its own screen (xterm's alternate one)."""
        return self._main is not None

    @property
    def text(self) -> str:
        """Return the screen's lines from the top, without blanks at their ends and empty lines at the bottom."""
        return "\n".join("".join(row).rstrip() for row in self._grid).rstrip("\n")

    def feed(self, text: str) -> None:
        """Process output of programs, which may be split anywhere."""
        text, at = self._pending + text, 0
        while found := _TOKEN.match(text, at):
            at = found.end()
            self._take(found)
        self._pending = text[at:]
        if len(self._pending) > _LONGEST:
            self._pending = ""

    def _take(self, found: re.Match[str]) -> None:
        if found["text"] is not None:
            self._write(found["text"])
        elif found["control"] is not None:
            self._control(found["control"])
        elif found["final"] is not None:
            self._sequence(found["csi"], found["final"], bool(found["between"]))
        elif found["charset"] == "(":
            self._drawing = found["set"] == "0"
        elif found["escape"] is not None:
            self._escape(found["escape"])

    # -- characters ---------------------------------------------------------------------------------------------------
    def _write(self, text: str) -> None:
        if self._drawing:
            text = text.translate(_LINE_CHARACTERS)
        if not text.isascii():
            for character in text:
                self._put(character)
            return
        self._last = text[-1]
        while text:  # as much at once as the line has room for
            self._wrap(1)
            part = text[: self._columns - self._column]
            self._grid[self._row][self._column : self._column + len(part)] = part
            self._column += len(part)
            text = text[len(part) :]

    def _put(self, character: str) -> None:
        if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Mn", "Me"):
            if self._column:
                self._grid[self._row][self._column - 1] += character
            return
        width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        self._wrap(width)
        self._last = character
        self._grid[self._row][self._column] = character
        if width == 2 and self._column + 1 < self._columns:
            self._grid[self._row][self._column + 1] = ""  # it covers two places
        self._column += width

    def _wrap(self, width: int) -> None:
        if self._column + width > self._columns:
            self._column = 0
            self._down()

    def _control(self, control: str) -> None:
        if control in "\n\v\f":
            self._down()
        elif control == "\r":
            self._column = 0
        elif control == "\b":
            self._column = max(0, min(self._column, self._columns - 1) - 1)
        elif control == "\t":
            self._column = min(self._columns - 1, (self._column // _TAB + 1) * _TAB)

    # -- sequences ----------------------------------------------------------------------------------------------------
    def _escape(self, name: str) -> None:
        if name == "7":
            self._saved = (self._row, self._column)
        elif name == "8":
            self._row, self._column = self._saved
        elif name in "DE":
            self._column = 0 if name == "E" else self._column
            self._down()
        elif name == "M":
            if self._row == self._top:
                self._scroll(-1, self._top)
            else:
                self._row = max(0, self._row - 1)
        elif name == "c":
            self._reset()

    def _sequence(self, given: str, final: str, between: bool) -> None:
        private = given[:1] in ("?", ">", "<", "=")
        numbers = [min(_MAX_NUMBER, int(word)) if word.isdigit() else 0 for word in given.lstrip("?><=").split(";")]
        if private:
            if given[:1] == "?" and final in "hl":
                self._modes(numbers, final == "h")
        elif final in _SEQUENCES and not between:
            _SEQUENCES[final](self, numbers)

    def _modes(self, numbers: list[int], on: bool) -> None:
        if not {47, 1047, 1049} & set(numbers) or on == self.full_screen:
            return
        if on:
            self._main = (self._grid, (self._row, self._column))
            self._grid = self._blank()
        else:
            self._grid, (self._row, self._column) = self._main
            self._main = None
        self._top, self._bottom = 0, self._rows - 1

    def _move(self, down: int, right: int) -> None:
        self._row = max(0, min(self._rows - 1, self._row + down))
        self._column = max(0, min(self._columns - 1, self._column + right))

    def _go(self, row: int | None, column: int | None) -> None:
        """Move the cursor to a row and a column, counted from 1 as programs do; None leaves one as it is."""
        self._row = self._row if row is None else max(0, min(self._rows, row or 1) - 1)
        self._column = self._column if column is None else max(0, min(self._columns, column or 1) - 1)

    def _erase_screen(self, what: int) -> None:
        if what in (0, 1):
            self._erase_line(what)
        begin, end = {0: (self._row + 1, self._rows), 1: (0, self._row)}.get(what, (0, self._rows))
        for row in range(begin, end):
            self._grid[row] = [" "] * self._columns

    def _erase_line(self, what: int) -> None:
        at = min(self._column, self._columns - 1)
        begin, end = {0: (at, self._columns), 1: (0, at + 1)}.get(what, (0, self._columns))
        self._grid[self._row][begin:end] = [" "] * (end - begin)

    def _insert(self, count: int) -> None:
        row, count = self._grid[self._row], min(count, self._columns)
        row[self._column : self._column] = [" "] * count
        del row[self._columns :]

    def _blank_out(self, count: int) -> None:
        end = min(self._columns, self._column + count)
        self._grid[self._row][self._column : end] = [" "] * max(0, end - self._column)

    def _delete(self, count: int) -> None:
        row = self._grid[self._row]
        del row[self._column : self._column + count]
        row += [" "] * (self._columns - len(row))

    def _region(self, numbers: list[int]) -> None:
        top, bottom = (numbers[0] or 1) - 1, ((numbers[1] if len(numbers) > 1 else 0) or self._rows) - 1
        if 0 <= top < bottom < self._rows:
            self._top, self._bottom = top, bottom
            self._go(1, 1)

    # -- the grid -----------------------------------------------------------------------------------------------------
    def _reset(self) -> None:
        self._grid, self._row, self._column = self._blank(), 0, 0
        self._top, self._bottom = 0, self._rows - 1

    def _blank(self) -> list[list[str]]:
        return [[" "] * self._columns for _ in range(self._rows)]

    def _down(self) -> None:
        if self._row == self._bottom:
            self._scroll(1, self._top)
        else:
            self._row = min(self._rows - 1, self._row + 1)

    def _scroll(self, count: int, top: int) -> None:
        """Move the lines from `top` to the end of the region up by `count`, or down where it is below 0."""
        times = min(abs(count), self._bottom - top + 1)
        if not top <= self._bottom:
            return
        for _ in range(times):
            line = [" "] * self._columns
            if count > 0:
                del self._grid[top]
                self._grid.insert(self._bottom, line)
            else:
                del self._grid[self._bottom]
                self._grid.insert(top, line)


def _second_number(numbers: list[int]) -> int:
    return numbers[1] if len(numbers) > 1 else 1


_SEQUENCES: dict[str, Callable[[TerminalEmulator, list[int]], None]] = {
    "A": lambda t, n: t._move(-(n[0] or 1), 0),
    "B": lambda t, n: t._move(n[0] or 1, 0),
    "C": lambda t, n: t._move(0, n[0] or 1),
    "D": lambda t, n: t._move(0, -(n[0] or 1)),
    "E": lambda t, n: t._move(n[0] or 1, -t._columns),
    "F": lambda t, n: t._move(-(n[0] or 1), -t._columns),
    "G": lambda t, n: t._go(None, n[0]),
    "`": lambda t, n: t._go(None, n[0]),
    "H": lambda t, n: t._go(n[0], _second_number(n)),
    "f": lambda t, n: t._go(n[0], _second_number(n)),
    "d": lambda t, n: t._go(n[0], None),
    "J": lambda t, n: t._erase_screen(n[0]),
    "K": lambda t, n: t._erase_line(n[0]),
    "L": lambda t, n: t._scroll(-(n[0] or 1), t._row),
    "M": lambda t, n: t._scroll(n[0] or 1, t._row),
    "P": lambda t, n: t._delete(n[0] or 1),
    "@": lambda t, n: t._insert(n[0] or 1),
    "X": lambda t, n: t._blank_out(n[0] or 1),
    "S": lambda t, n: t._scroll(n[0] or 1, t._top),
    "T": lambda t, n: t._scroll(-(n[0] or 1), t._top),
    "b": lambda t, n: t._write(t._last * min(n[0] or 1, t._columns)),
    "r": lambda t, n: t._region(n),
    "s": lambda t, n: t._escape("7"),
    "u": lambda t, n: t._escape("8"),
}
