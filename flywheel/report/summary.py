"""The last screen of a run: a row an iteration."""

from __future__ import annotations

from rich.table import Table

from flywheel.report import facts
from flywheel.store import catalog
from flywheel.workspace import Workspace, label


def summary_table(ws: Workspace) -> Table:
    """A rich table: tasks, trajectories, P(V=1), where they went, held-out success before -> after, promoted or not."""
    with catalog.connect(ws) as connection:
        rows = facts.iterations(connection)
    domains = facts.domains(rows)
    table = Table(title="The flywheel", title_justify="left", header_style="bold")
    columns = ("iteration", "tasks", "rollouts", "recordings", "P(V=1)", "to SFT", "to CT", "quarantine", *domains)
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column("promoted")
    table.add_column("minutes", justify="right")
    for row in rows:
        table.add_row(
            label(row["iteration"]), str(row["tasks"]), str(row["trajectories"]), str(row["recordings"]),
            _with_interval(row), str(row["to_sft"]), str(row["to_ct"]), str(row["to_quarantine"]),
            *(_change(row["success"].get(domain)) for domain in domains),
            {None: "-", True: "[green]yes[/]", False: "no"}[row["promoted"]],
            "-" if row["minutes"] is None else f"{row['minutes']:.1f}",
        )  # fmt: skip
    return table


def _with_interval(row: dict) -> str:
    if row["p_v1"] is None:
        return "-"
    return f"{row['p_v1']:.2f} [dim]({row['p_v1_low']:.2f}-{row['p_v1_high']:.2f})[/]"


def _change(success: dict | None) -> str:
    if not success or success["after"] is None:
        return "-"
    before, after = success["before"] or 0.0, success["after"]
    tone = "green" if after > before else "red" if after < before else "default"
    return f"{before:.2f} → [{tone}]{after:.2f}[/]"
