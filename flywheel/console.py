"""How a run looks in a terminal: a line a stage, with what it does now while it does it."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from flywheel.progress import Told


class RunConsole:
    """A listener for `flywheel.progress`. In a terminal the newest line moves; in a log it is printed, at most
    one every two seconds a stage. What is told (`progress.tell`), and that a shard is done, is printed always."""

    def __init__(self, console: Console) -> None:
        self._console, self._began, self._last = console, {}, {}
        self._status: Status | None = None
        self._lock = threading.Lock()
        self._start = time.monotonic()

    def __enter__(self) -> RunConsole:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self._status:
            self._status.stop()

    def __call__(self, stage: str, line: str) -> None:
        with self._lock:
            now = time.monotonic()
            clock = f"[dim]{_minutes(now - self._start)}[/dim]"
            if line == "begins":
                self._began[stage] = now
                self._show(f"{clock} {stage}")
            elif line.startswith("ended"):
                took = now - self._began.get(stage, now)
                self._console.print(
                    f"{clock} [green]✓[/green] [bold]{stage:<12}[/bold] {took:5.1f} s  {escape(line[7:])}",
                    soft_wrap=True,
                )
            elif stage in self._began and not isinstance(line, Told):
                if self._status or line.endswith(" done") or now - self._last.get(stage, float("-inf")) >= 2:
                    self._last[stage] = now
                    self._show(f"{clock} {stage}: {escape(line)}")
            else:
                self._console.print(f"{clock}   [bold]{stage:<12}[/bold] {escape(line)}", soft_wrap=True)

    def _show(self, text: str) -> None:
        if self._status:
            self._status.update(text)
        else:
            self._console.print(text, highlight=False, soft_wrap=True)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
