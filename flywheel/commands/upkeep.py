"""Commands for a workspace's past: rollback, diff, prune, verify."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from flywheel.commands.options import JSON, WORKSPACE
from flywheel.errors import BadInput
from flywheel.workspace import Workspace, label

_MIB = 2**20


@click.command(epilog="Example: flywheel rollback 3    (and back: flywheel rollback --undo)")
@click.argument("iteration", type=click.IntRange(0), required=False)
@click.option("--undo", is_flag=True, help="Bring back what was set aside after the newest iteration.")
@WORKSPACE
def rollback(iteration: int | None, undo: bool, workspace: Path | None) -> None:
    """Make an iteration the newest again. What came after it is set aside whole, and can be brought back."""
    from flywheel import run_lock
    from flywheel.upkeep import again
    from flywheel.upkeep import rollback as going_back

    ws = Workspace.find(workspace)
    if undo == (iteration is not None):
        raise BadInput("to which iteration?", where="flywheel rollback", fix="give its number, or --undo")
    with run_lock.hold(ws):
        again.resume(ws)
        going_back.resume(ws)
        if undo:
            k = going_back.bring_back(ws)
            click.echo(f"what came after iteration {label(k)} is back")
            return
        later = going_back.plan(ws, iteration)
        if not later:
            click.echo(f"iteration {label(iteration)} is the newest")
            return
        folder = going_back.carry_out(ws, iteration)
    which = label(later[0]) if len(later) == 1 else f"{label(later[0])} to {label(later[-1])}"
    click.echo(f"iteration {label(iteration)} is the newest; {which} lies in {ws.relative(folder)}")
    click.echo("`flywheel rollback --undo` brings it back, as long as this is the newest")


@click.command(epilog="Example: flywheel diff 2 3 --json")
@click.argument("before", type=click.IntRange(1))
@click.argument("after", type=click.IntRange(1))
@JSON
@WORKSPACE
def diff(before: int, after: int, as_json: bool, workspace: Path | None) -> None:
    """Compare two iterations. Rows, distributions, metrics, tasks gained and lost."""
    from flywheel.upkeep import difference

    found = difference.compare(Workspace.find(workspace), before, after)
    if as_json:
        click.echo(json.dumps(found, default=str))
        return
    _tell(found)


def _tell(found: dict[str, Any]) -> None:
    from flywheel.store import catalog, formats

    one, other = label(found["before"]), label(found["after"])
    for title, rows in (
        ("rows", found["rows"]),
        ("trajectories that were routed, by what they are", found["kinds"]),
        ("their figures", found["numbers"]),
        ("metrics that differ", [row for row in found["metrics"] if row["difference"] != 0]),
    ):
        click.echo(f"{title} ({one} and {other})")
        click.echo(catalog.render(formats.table_of(rows)) if rows else "none\n")
    held_out = found["held_out"]
    if held_out["known"]:
        gained, lost = held_out["gained"], held_out["lost"]
        click.echo(f"held-out tasks: {held_out['tasks']} alike, {held_out['both']} solved by both")
        click.echo(f"  gained {len(gained)}: {', '.join(gained[:10]) or '-'}")
        click.echo(f"  lost {len(lost)}: {', '.join(lost[:10]) or '-'}")
    else:
        click.echo("held-out tasks: not known of both")
    for name in ("gained", "lost"):
        rows = [f"{row['world']}/{row['template']} {row['level']}" for row in found["templates"][name]]
        click.echo(f"training templates {name}: {len(rows)}{': ' * bool(rows)}{', '.join(rows[:10])}")


@click.command(epilog="Example: flywheel prune --keep 5 --write --cache")
@click.option("--keep", type=click.IntRange(1), help="Of the newest N complete iterations nothing goes.")
@click.option("--older-than", "days", type=click.FloatRange(0), help="Nothing goes of what ended in the last DAYS.")
@click.option("--training-data", is_flag=True, help="Also what training reads of them.")
@click.option("--cache", is_flag=True, help="Also what DVC's cache holds and no iteration names that is here or aside.")
@click.option("--write", is_flag=True, help="Do it; without this it is only shown.")
@WORKSPACE
def prune(
    keep: int | None, days: float | None, training_data: bool, cache: bool, write: bool, workspace: Path | None
) -> None:
    """Remove what past iterations do not need. Never the weights of a promoted model, nor what training reads.

    Intermediate checkpoints go, and the steps, screens and events of evaluation and RL. DVC's cache and the remote keep
    them, unless --cache is given and there is no remote.
    """
    from flywheel import run_lock
    from flywheel.upkeep import prune as pruning

    ws = Workspace.find(workspace)
    with run_lock.hold(ws):
        older = None if days is None else timedelta(days=days)
        chosen = pruning.plan(ws, keep=keep, older=older, training_data=training_data)
        for one in chosen:
            click.echo(f"{one.path}  {one.bytes / _MIB:.1f} MiB")
        verb = "removed" if write else "would go"
        click.echo(f"{sum(one.bytes for one in chosen) / _MIB:.1f} MiB of data and models {verb}")
        if write:
            pruning.carry_out(ws, chosen)
        if cache:
            spare = [one.path for one in chosen]
            garbage = pruning.garbage(ws, spare)
            click.echo(f"{sum(size for _, size in garbage) / _MIB:.1f} MiB of DVC's cache {verb}")
            for path, _ in garbage if write else ():
                path.unlink()
    if not write and (chosen or cache):
        click.echo("nothing was removed: add --write")


@click.command(epilog="Example: flywheel verify 3")
@click.argument("iteration", type=click.IntRange(1), required=False)
@WORKSPACE
def verify(iteration: int | None, workspace: Path | None) -> None:
    """Hold every file against its hash. Data, models, records, manifests: a line for each fault, and then exit 1."""
    from flywheel.upkeep import verify as verification

    found = 0
    for line in verification.faults(Workspace.find(workspace), None if iteration is None else [iteration]):
        found += 1
        click.echo(line)
    if found:
        sys.exit(1)
    click.echo("every file is as it was recorded")
