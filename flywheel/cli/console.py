"""Print the progress and the outcome of a run in a terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.status import Status
from rich.table import Table

from flywheel.cli.command_names import name_commands
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.utils.progress import Announcement, TimeLeft, format_duration


class RunConsole:
    """Print progress lines to `console`, as a listener of `flywheel.utils.progress`.

    In a terminal the newest line replaces the one before. In a log lines are printed, at most one every two seconds a
    stage. Announcements, and lines that say that a shard is done, are always printed.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._began, self._last = console, {}, {}
        self._status: Status | None = None
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._ends: float | None = None  # expected end of the iteration, where known

    def __enter__(self) -> RunConsole:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self._status:
            self._status.stop()

    def __call__(self, stage: str, line: str) -> None:
        """Show a line of progress of the stage named `stage`."""
        with self._lock:
            now = time.monotonic()
            minutes, seconds = divmod(int(now - self._start), 60)
            clock = f"[dim]{minutes}:{seconds:02d}[/dim]"
            if isinstance(line, TimeLeft):
                self._ends = now + line.seconds
                self._show(f"{clock} {line}")
            elif line == "begins":
                self._began[stage] = now
                self._show(f"{clock} {stage}")
            elif line.startswith("ended"):
                took = now - self._began.get(stage, now)
                done = f"{clock} [green]✓[/green] [bold]{stage:<12}[/bold] {took:5.1f} s  {escape(line[7:])}"
                self._console.print(done, soft_wrap=True)
            elif stage in self._began and not isinstance(line, Announcement):
                if self._status or line.endswith(" done") or now - self._last.get(stage, float("-inf")) >= 2:
                    self._last[stage] = now
                    self._show(f"{clock} {stage}: {escape(line)}")
            else:
                told = escape(name_commands(line))
                self._console.print(f"{clock}   [bold]{stage:<12}[/bold] {told}", soft_wrap=True)

    def _show(self, text: str) -> None:
        if self._status:
            left = self._ends and max(self._ends - time.monotonic(), 0.0)
            self._status.update(text + f" [dim](about {format_duration(left)} left)[/dim]" * bool(left))
        else:
            self._console.print(text, highlight=False, soft_wrap=True)


def plain_table(*names: str, left: Sequence[int] = (), **options: Any) -> Table:
    """Make a table for a terminal of 80 columns: no frame, one space between columns.

    names: headings. left: indices of the columns of words, which are aligned left. options: of rich's Table.
    """
    table = Table(header_style="bold", box=None, padding=(0, 1, 0, 0), pad_edge=False, **options)
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place in left else "right", no_wrap=True)
    return table


_ITERATIONS_SHOWN = 10


def build_summary_tables(ws: Workspace, width: int, *, everything: bool = False) -> list[Table]:
    """Build the rich table of the newest ten iterations that `flywheel run` and `flywheel status` print.

    A row has tasks, trajectories, recordings, P(V=1), routes, held-out success before -> after, promoted or not,
    minutes. Where it is wider than `width` characters, held-out success is in a second table. everything: show all
    iterations. Raises DataError as `connect_catalog`, and as `run_query`.
    """
    from flywheel.store.catalog import database
    from flywheel.ui.report import figures

    with database.connect_catalog(ws) as connection:
        rows = figures.query_report_iterations(connection)[0 if everything else -_ITERATIONS_SHOWN :]
    domains = figures.list_evaluated_domains(rows)
    labels = [iteration_label(row["iteration"]) for row in rows]
    success = [[_format_change(row["held_out_success"].get(domain)) for domain in domains] for row in rows]
    counts = [
        (
            str(row["tasks"]),
            str(row["trajectories"]),
            str(row["recordings"]),
            "-" if row["p_v1"] is None else f"{row['p_v1']:.2f}",
            str(row["to_sft"]),
            str(row["to_ct"]),
            str(row["to_quarantine"]),
        )
        for row in rows
    ]
    ends = [
        (
            {None: "-", True: "[green]yes[/]", False: "no"}[row["promoted"]],
            "-" if row["minutes"] is None else f"{row['minutes']:.1f}",
        )
        for row in rows
    ]
    before, after = ("iter", "tasks", "roll", "rec", "P(V=1)", "SFT", "CT", "quar"), ("prom", "min")

    def table(title: str, names: Iterable[str], *parts: Iterable[Sequence[str]]) -> Table:
        made = plain_table(*names, title=title, title_justify="left")
        for label, *cells in zip(labels, *parts, strict=True):
            made.add_row(label, *(cell for part in cells for cell in part))
        return made

    whole = table("The flywheel", (*before, *domains, *after), counts, success, ends)
    wide = Console(width=1000)
    if Measurement.get(wide, wide.options, whole).maximum <= width:
        return [whole]
    return [
        table("The flywheel", (*before, *after), counts, ends),
        table("Success on held-out tasks, before → after", ("iter", *domains), success),
    ]


def _format_change(success: dict | None) -> str:
    if not success or success["after"] is None:
        return "-"
    before, after = success["before"], success["after"]
    if before is None:
        return f"-→{after:.2f}"
    tone = "green" if after > before else "red" if after < before else "default"
    return f"{before:.2f}→[{tone}]{after:.2f}[/]"
