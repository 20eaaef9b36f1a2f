"""Commands that decide again what was decided: reroute, quarantine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from flywheel.commands.options import JSON, WORKSPACE
from flywheel.errors import BadInput
from flywheel.workspace import Workspace, label

_SHARE = click.FloatRange(0, 1)


@click.command(epilog="Example: flywheel reroute 3 --threshold 0.8    (then the same with --write)")
@click.argument("iteration", type=click.IntRange(1), required=False)
@click.option("--all", "everything", is_flag=True, help="Every iteration that is routed.")
@click.option("--threshold", type=_SHARE, help="Hold every score against it; default: against its task's own.")
@click.option("--scorer", "scorers", multiple=True, metavar="NAME", help="Who judges; default: who the settings name.")
@click.option("--band", nargs=2, type=_SHARE, metavar="LOW HIGH", help="Set aside what scores LOW <= score < HIGH.")
@click.option("--write", is_flag=True, help="Do it; without this it is only shown.")
@JSON
@WORKSPACE
def reroute(
    iteration: int | None,
    everything: bool,
    threshold: float | None,
    scorers: tuple[str, ...],
    band: tuple[float, float] | None,
    write: bool,
    as_json: bool,
    workspace: Path | None,
) -> None:
    """Decide again where trajectories go. From what is on disk: nothing is played, no model is asked.

    What is not named is as the iteration's own parameters say, so without options it goes back to those.
    """
    from flywheel import run_lock
    from flywheel.store import build as stores
    from flywheel.store import decisions, versioning
    from flywheel.upkeep import again
    from flywheel.upkeep import reroute as rerouting

    ws = Workspace.find(workspace)
    if band and band[0] >= band[1]:
        raise BadInput("the low end is not below the high end", where="--band", fix="for example --band 0.4 0.6")
    if everything == (iteration is not None):
        raise BadInput("which iteration?", where="flywheel reroute", fix="give its number, or --all")
    rule = decisions.Rule(threshold, scorers or None, band or None)
    with run_lock.hold(ws):
        again.begin(ws)
        routed = (k for k in versioning.iterations(ws) if ws.partition("routes", k, stores.STAGE).is_dir())
        which = list(routed) if everything else [iteration]
        found = [rerouting.prepare(ws, k, rule) for k in which]
        if write:
            rerouting.write(ws, found, rule)
        again.begin(ws)
    if as_json:
        told = [{**vars(one), "moved_in_all": one.count, "written": write} for one in found]
        click.echo(json.dumps(told, default=str, allow_nan=False))
        return
    for one in found:
        _tell(one, write)


def _tell(found: Any, written: bool) -> None:
    k = label(found.iteration)
    if not found.moved:
        changed = f"{found.scores} scores and {found.routes} reasons change" if found.routes or found.scores else ""
        click.echo(f"iteration {k}: every trajectory goes where it went{'; ' * bool(changed)}{changed}")
        return
    click.echo(f"iteration {k}: {found.count} trajectories go elsewhere, {found.scores} scores change")
    for one in found.moved:
        click.echo(f"  {one['domain']}: {one['from']} -> {one['to']}  {one['trajectories']}")
        for example in one["examples"]:
            click.echo(f"    {example['trajectory_id']}: {example['reason']} -> {example['then']}")
    click.echo("  then: " + ", ".join(f"{name} {count}" for name, count in found.routed.items()))
    if found.stale:
        click.echo(f"  made from the stores as they were, and not made again: {', '.join(found.stale)}")
    click.echo("  written, and recorded" if written else "  nothing was written: add --write")


@click.command(
    epilog="Example: flywheel quarantine 3 --set \"status='completed'\" --where \"error LIKE '%screenshot%'\""
)
@click.argument("iteration", type=click.IntRange(1), required=False)
@click.option("--rows", type=click.IntRange(1), is_flag=False, flag_value=20, help="Show so many rows; without N: 20.")
@click.option("--where", default="true", help="Which rows, in SQL: columns of the table, reason, detail.")
@click.option("--set", "assignments", multiple=True, metavar="COLUMN=SQL", help="Mend the column of these rows.")
@click.option("--table", type=click.Choice(["trajectories", "steps"]), default="trajectories", help="To mend rows of.")
@click.option("--write", is_flag=True, help="Mend, and route again; without this it is only shown.")
@JSON
@WORKSPACE
def quarantine(
    iteration: int | None,
    rows: int | None,
    where: str,
    assignments: tuple[str, ...],
    table: str,
    write: bool,
    as_json: bool,
    workspace: Path | None,
) -> None:
    """Look at what was set aside, mend it, and let it be routed again.

    What is mended is judged by the scorers and goes through all contracts again.
    """
    from flywheel.store import catalog, formats
    from flywheel.upkeep import mend

    ws = Workspace.find(workspace)
    if (rows or assignments or where != "true") and iteration is None:
        raise BadInput("of which iteration?", where="flywheel quarantine", fix="give its number")
    if assignments:
        _mend(ws, iteration, _expressions(assignments), where, table, write, as_json)
        return
    found = mend.rows(ws, iteration, where, rows or 20) if rows or where != "true" else mend.reasons(ws, iteration)
    if as_json:
        click.echo(json.dumps(found, default=str))
    elif not found:
        click.echo("nothing is set aside")
    elif rows or where != "true":
        for one in found:
            click.echo(json.dumps({name: value for name, value in one.items() if value is not None}, default=str))
    else:
        click.echo(catalog.render(formats.table_of(found)), nl=False)


def _expressions(assignments: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in assignments:
        column, sign, sql = text.partition("=")
        if not sign or not column.strip() or not sql.strip():
            raise BadInput(f"not COLUMN=SQL: {text}", where="--set", fix="for example --set \"status='completed'\"")
        found[column.strip()] = sql.strip()
    return found


def _mend(
    ws: Workspace, iteration: int, expressions: Mapping[str, str], where: str, table: str, write: bool, as_json: bool
) -> None:
    from flywheel import run_lock
    from flywheel.upkeep import again, mend

    with run_lock.hold(ws):
        again.begin(ws)
        found = mend.prepare(ws, iteration, expressions, where, table)
        if write:
            mend.write(ws, found)
        again.begin(ws)
    if as_json:
        told = {**vars(found), "difference": vars(found.difference), "written": write}
        click.echo(json.dumps(told, default=str, allow_nan=False))
        return
    click.echo(f"iteration {label(iteration)}: {found.rows} rows of {table}, of {found.trajectories} trajectories")
    for one in found.examples:
        click.echo("  " + json.dumps(one, default=str))
    for how, count in found.routed.items():
        click.echo(f"  {count} to {how}")
    if found.difference.stale:
        click.echo(f"  made from the stores as they were, and not made again: {', '.join(found.difference.stale)}")
    click.echo("  written, and recorded" if write else "  nothing was written: add --write")
