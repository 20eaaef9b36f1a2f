"""The last screen of a run: a row an iteration."""

from __future__ import annotations

from rich.table import Table

from flywheel.report import facts
from flywheel.store import catalog
from flywheel.workspace import Workspace, label

_SHOWN = 10


def summary_table(ws: Workspace, *, everything: bool = False) -> Table:
    """A rich table: what came in, P(V=1), where it went, held-out success before -> after, promoted or not.

    everything: of all iterations, not of the newest ten alone.
    """
    with catalog.connect(ws) as connection:
        rows = facts.iterations(connection)[0 if everything else -_SHOWN :]
    domains = facts.domains(rows)
    # It must be read in a terminal of 80 columns: short names, no frame, one space between columns.
    table = Table(
        title="The flywheel", title_justify="left", header_style="bold", box=None, padding=(0, 1, 0, 0), pad_edge=False
    )
    for name in ("iter", "tasks", "roll", "rec", "P(V=1)", "SFT", "CT", "quar", *domains, "prom", "min"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            label(row["iteration"]),
            str(row["tasks"]),
            str(row["trajectories"]),
            str(row["recordings"]),
            "-" if row["p_v1"] is None else f"{row['p_v1']:.2f}",
            str(row["to_sft"]),
            str(row["to_ct"]),
            str(row["to_quarantine"]),
            *(_change(row["success"].get(domain)) for domain in domains),
            {None: "-", True: "[green]yes[/]", False: "no"}[row["promoted"]],
            "-" if row["minutes"] is None else f"{row['minutes']:.1f}",
        )
    return table


def _change(success: dict | None) -> str:
    if not success or success["after"] is None:
        return "-"
    before, after = success["before"] or 0.0, success["after"]
    tone = "green" if after > before else "red" if after < before else "default"
    return f"{before:.2f}→[{tone}]{after:.2f}[/]"
