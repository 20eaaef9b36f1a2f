"""View, import, export, reroute and repair data: `data ...`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from flywheel.cli.options import FOLDER_OPTION, JSON_OPTION, WORKSPACE_OPTION
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.utils.errors import BadInput, DataError, DiskFull

_REFUSED_SHOWN = 5  # refused records that are listed one by one
_FILE_TYPE = click.Path(path_type=Path)


@click.command(epilog="Example: flywheel data import agentnet agentnet_ubuntu_5k.jsonl --images images-full.zip")
@click.argument("file", type=_FILE_TYPE)
@click.option("--images", type=_FILE_TYPE, required=True, help="Zip or folder with the screenshots.")
@click.option("--licence", help="Licence of the data; default: the publisher's, mit.")
@click.option("--limit", type=click.IntRange(1), help="Import at most so many trajectories.")
@WORKSPACE_OPTION
def agentnet_command(file: Path, images: Path, licence: str | None, limit: int | None, ws: Workspace) -> None:
    """Import AgentNet (OpenCUA): JSON lines, and screens in a zip."""
    from flywheel.store.interop import agentnet as data

    _import_records(ws, partial(data.read_agentnet, file, images, licence or data.LICENCE), limit, data.NOT_HELD)


@click.command(epilog="Example: flywheel data import mind2web data/train-*.parquet")
@click.argument("files", type=_FILE_TYPE, nargs=-1, required=True)
@click.option("--licence", help="Licence of the data; default: the publisher's, openrail.")
@click.option("--limit", type=click.IntRange(1), help="Import at most so many trajectories.")
@click.option(
    "--window-height",
    type=click.IntRange(64),
    metavar="PIXELS",
    help="Cut taller pages to the window of this height that holds the target; default: they stay whole.",
)
@WORKSPACE_OPTION
def mind2web_command(
    files: tuple[Path, ...], licence: str | None, limit: int | None, window_height: int | None, ws: Workspace
) -> None:
    """Import Multimodal-Mind2Web: Parquet files of one split. What its publisher holds out is never trained on."""
    from flywheel.store.interop import mind2web as data

    read = partial(data.read_mind2web, files, licence or data.LICENCE, window_height=window_height)
    _import_records(ws, read, limit, data.NOT_HELD)


@click.command(epilog="Example: flywheel data import osworld results --tasks evaluation_examples")
@click.argument("folders", type=_FILE_TYPE, nargs=-1, required=True)
@click.option("--tasks", type=_FILE_TYPE, help="Folder with the task configs, for the instructions.")
@click.option(
    "--split", type=click.Choice(["eval", "train"]), default="eval", show_default=True, help="Kind of their tasks."
)
@click.option("--licence", default="", help="Licence of the data.")
@click.option("--limit", type=click.IntRange(1), help="Import at most so many trajectories.")
@WORKSPACE_OPTION
def osworld_command(
    folders: tuple[Path, ...], tasks: Path | None, split: str, licence: str, limit: int | None, ws: Workspace
) -> None:
    """Import OSWorld results: folders with traj.jsonl. They are evaluation tasks, unless --split train says other."""
    from flywheel.store.interop import osworld as data

    _import_records(ws, partial(data.read_osworld, folders, tasks, split, licence), limit, data.NOT_HELD)
    if split == "eval":
        click.echo(
            "They are marked as evaluation tasks, which are never trained on; --split train for tasks of your own."
        )


@click.command(epilog="Example: flywheel data import agentnettool Documents/AgentNetRecordings")
@click.argument("folders", type=_FILE_TYPE, nargs=-1, required=True)
@click.option("--licence", default="", help="Licence of the data.")
@click.option("--limit", type=click.IntRange(1), help="Import at most so many trajectories.")
@WORKSPACE_OPTION
def agentnettool_command(folders: tuple[Path, ...], licence: str, limit: int | None, ws: Workspace) -> None:
    """Import AgentNetTool sessions: folders with events.jsonl and a video, which needs PyAV."""
    from flywheel.store.interop import agentnet_tool as data

    _import_records(ws, partial(data.read_agentnet_tool, folders, licence), limit, data.NOT_HELD)


@click.command(epilog="Example: flywheel data import openadapt captures")
@click.argument("folders", type=_FILE_TYPE, nargs=-1, required=True)
@click.option("--licence", default="", help="Licence of the data.")
@click.option("--limit", type=click.IntRange(1), help="Import at most so many trajectories.")
@WORKSPACE_OPTION
def openadapt_command(folders: tuple[Path, ...], licence: str, limit: int | None, ws: Workspace) -> None:
    """Import captures of openadapt-capture: folders with recording.db, and a video, which needs PyAV."""
    from flywheel.store.interop import openadapt as data

    _import_records(ws, partial(data.read_openadapt, folders, licence), limit, data.NOT_HELD)


@click.command(epilog="Example: flywheel data import agentnetbench test_data --images test_data/images")
@click.argument("files", type=_FILE_TYPE, nargs=-1, required=True)
@click.option("--images", type=_FILE_TYPE, required=True, help="Zip or folder with the screenshots.")
@click.option("--licence", help="Licence of the data; default: the publisher's, mit.")
@click.option("--limit", type=click.IntRange(1), help="Import at most so many trajectories.")
@WORKSPACE_OPTION
def agentnetbench_command(
    files: tuple[Path, ...], images: Path, licence: str | None, limit: int | None, ws: Workspace
) -> None:
    """Import AgentNetBench: JSON files, and screens in a folder. Its tasks are never trained on."""
    from flywheel.store.interop import agentnet_bench as data

    read = partial(data.read_agentnet_bench, files, images, licence or data.LICENCE)
    _import_records(ws, read, limit, data.NOT_HELD)


def _import_records(
    ws: Workspace, read: Callable[..., Iterable], limit: int | None, not_held: Mapping[str, str]
) -> None:
    from flywheel import config
    from flywheel.store.interop.demonstration import RefusedRecord, save_demonstration

    settings = config.load_settings(ws.params)
    chosen = settings.recording
    recordings = ws.resolve(chosen.folder)
    recordings.mkdir(parents=True, exist_ok=True)
    new, there, unlearnt, steps, holes, refused = 0, 0, 0, 0, 0, []
    for record in read(max_side=settings.policy.max_image_side):
        if not isinstance(record, RefusedRecord):
            try:
                saved = save_demonstration(record, recordings)
            except DiskFull:
                raise
            except Exception as error:  # of whatever kind: it concerns this record alone
                record = RefusedRecord.from_error(record.origin, error)
        if isinstance(record, RefusedRecord):
            refused.append(record)
            continue
        new, there = new + saved, there + (not saved)
        steps += len(record.steps)
        unlearnt += sum(bool(step.fault or step.slip) for step in record.steps)
        holes += "missing_steps" in record.facts
        if limit and new + there >= limit:
            break
    click.echo(f"imported {new} trajectories to {chosen.folder}, {there} were there, {len(refused)} refused")
    click.echo(f"of their {steps} steps {unlearnt} are not learnt: a slip, or no action of the grammar")
    if holes:
        click.echo(f"{holes} of them lack steps that the data set numbers: `reviews` says which")
    for one in refused[:_REFUSED_SHOWN]:
        click.echo(f"  refused: {one.where}: {one.why}")
    _print_not_held("What the store does not hold of them:", not_held)
    if not new + there:
        raise DataError("nothing could be imported", where="; ".join(one.where for one in refused[:1]))
    click.echo(f"The next iterations take in {chosen.imports_per_iteration} of them each.")


@click.command(epilog="Example: flywheel data export webdataset --store sft --output sft-tars")
@click.argument("form", type=click.Choice(["webdataset", "huggingface"]))
@click.option("--store", type=click.Choice(["ct", "sft"]), default="sft", help="Training store to export.")
@click.option("--output", "-o", type=_FILE_TYPE, required=True, help="Folder to create.")
@click.option("--iteration", type=click.IntRange(1), help="The store as of this iteration; default: the newest.")
@WORKSPACE_OPTION
def export_command(form: str, store: str, output: Path, iteration: int | None, ws: Workspace) -> None:
    """Export a training store to WebDataset or Hugging Face's datasets. Each step is a sample."""
    from flywheel.store.interop import exports
    from flywheel.store.versioning import stage_records

    if output.exists():
        raise BadInput("there is something already", where=output, fix="name a folder that is not there yet")
    built = [k for k in stage_records.list_iterations(ws) if ws.manifest(k).is_file()]
    if iteration not in (None, *built) or not built:
        raise BadInput(
            "no such iteration is built", where=f"--iteration {iteration or ''}", fix="see `flywheel status`"
        )
    k = iteration or max(built)
    steps = exports.read_store_steps(ws, store, k)
    if form == "webdataset":
        count, not_held = exports.write_webdataset(steps, output), exports.WEBDATASET_NOT_HELD
    else:
        title = f"{store} store of iteration {k}"
        count, not_held = exports.write_hugging_face(steps, output, title), exports.HUGGING_FACE_NOT_HELD
    click.echo(f"wrote {count} steps of {store} to {output}")
    _print_not_held("What the format does not hold:", not_held)


def _print_not_held(head: str, not_held: Mapping[str, str]) -> None:
    click.echo(head)
    for name, why in not_held.items():
        click.echo(f"  {name}: {why}")


_SHARE = click.FloatRange(0, 1)


@click.command(epilog="Example: flywheel data reroute 3 --threshold 0.8    (then the same with --write)")
@click.argument("iteration", type=click.IntRange(1), required=False)
@click.option("--all", "everything", is_flag=True, help="Reroute every iteration that has routes.")
@click.option("--threshold", type=_SHARE, help="Least score (0 to 1) of a success; default: each task's own.")
@click.option(
    "--scorer",
    "scorers",
    multiple=True,
    metavar="NAME",
    help="Scorer that judges; may be given again; default: the settings'.",
)
@click.option("--band", nargs=2, type=_SHARE, metavar="LOW HIGH", help="Quarantine what scores LOW <= score < HIGH.")
@click.option("--write", is_flag=True, help="Write the new routes; without it they are only shown.")
@JSON_OPTION
@WORKSPACE_OPTION
def reroute_command(
    iteration: int | None,
    everything: bool,
    threshold: float | None,
    scorers: tuple[str, ...],
    band: tuple[float, float] | None,
    write: bool,
    as_json: bool,
    ws: Workspace,
) -> None:
    """Show which store each trajectory would go to now; --write moves it. Stored scores are used: nothing is played.

    What no option names is as the iteration's own parameters say, so without options it goes back to those.
    """
    from flywheel.config import run_lock
    from flywheel.maintenance import reroute
    from flywheel.store import routing_decisions
    from flywheel.store.routing import training_stores as stores
    from flywheel.store.versioning import stage_records

    if band and band[0] >= band[1]:
        raise BadInput("the low end is not below the high end", where="--band", fix="for example --band 0.4 0.6")
    if everything == (iteration is not None):
        raise BadInput("which iteration?", where="flywheel data reroute", fix="give its number, or --all")
    rule = routing_decisions.RoutingRule(threshold, scorers or None, band or None)
    with run_lock.hold_workspace(ws):
        reroute.settle_pending_decisions(ws)
        routed = (
            k for k in stage_records.list_iterations(ws) if ws.partition("routes", k, stores.ROUTE_STAGE).is_dir()
        )
        which = list(routed) if everything else [iteration]
        found = [reroute.prepare_reroute(ws, k, rule) for k in which]
        if write:
            reroute.apply_reroute(ws, found, rule)
        reroute.settle_pending_decisions(ws)
    if as_json:
        told = [{**vars(one), "moved_in_all": one.count, "written": write} for one in found]
        click.echo(json.dumps(told, default=str, allow_nan=False))
        return
    for one in found:
        _print_rerouted(one, write)


def _print_rerouted(found: Any, written: bool) -> None:
    k = iteration_label(found.iteration)
    if not found.moved:
        changed = f"{found.verdicts} scores and {found.routes} reasons change" if found.routes or found.scores else ""
        click.echo(f"iteration {k}: every trajectory goes where it went{'; ' * bool(changed)}{changed}")
        return
    click.echo(f"iteration {k}: {found.count} trajectories go elsewhere, {found.verdicts} scores change")
    for one in found.moved:
        click.echo(f"  {one['domain']}: {one['from']} -> {one['to']}  {one['trajectories']}")
        for example in one["examples"]:
            click.echo(f"    {example['trajectory_id']}: {example['reason']} -> {example['then']}")
    click.echo("  then: " + ", ".join(f"{name} {count}" for name, count in found.routed.items()))
    if found.stale:
        click.echo(f"  made from the stores as they were, and not made again: {', '.join(found.stale)}")
    click.echo("  written, and recorded" if written else "  nothing was written: add --write")


@click.command(
    epilog="Example: flywheel data quarantine 3 --set \"status='completed'\" --where \"error LIKE '%screenshot%'\""
)
@click.argument("iteration", type=click.IntRange(1), required=False)
@click.option("--rows", type=click.IntRange(1), is_flag=False, flag_value=20, help="Show N rows; without N: 20.")
@click.option("--where", help="Which rows, as an SQL condition on columns of the table, reason, detail.")
@click.option("--set", "assignments", multiple=True, metavar="COLUMN=SQL", help="Set the column of these rows.")
@click.option(
    "--table",
    type=click.Choice(["trajectories", "steps"]),
    default="trajectories",
    show_default=False,
    help="Table whose rows are repaired.",
)
@click.option("--write", is_flag=True, help="Repair and route again; without it the effect is only shown.")
@JSON_OPTION
@WORKSPACE_OPTION
def quarantine_command(
    iteration: int | None,
    rows: int | None,
    where: str | None,
    assignments: tuple[str, ...],
    table: str,
    write: bool,
    as_json: bool,
    ws: Workspace,
) -> None:
    """Show quarantined trajectories, repair their rows, and route them again.

    Scorers and contracts judge repaired trajectories again.
    """
    from flywheel.maintenance import quarantine
    from flywheel.store.catalog import database

    if (rows or assignments or where) and iteration is None:
        raise BadInput("of which iteration?", where="flywheel data quarantine", fix="give its number")
    if assignments:
        _repair_rows(ws, iteration, _parse_expressions(assignments), where or "true", table, write, as_json)
        return
    found = (
        quarantine.quarantined_trajectories(ws, iteration, where or "true", rows or 20)
        if rows or where
        else quarantine.quarantine_reasons(ws, iteration)
    )
    if as_json:
        click.echo(json.dumps(found, default=str))
    elif not found:
        click.echo("nothing is set aside")
    elif rows or where:
        for one in found:
            click.echo(json.dumps({name: value for name, value in one.items() if value is not None}, default=str))
    else:
        click.echo(database.render_result(database.table_from_mappings(found)), nl=False)


def _parse_expressions(assignments: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in assignments:
        column, sign, sql = text.partition("=")
        if not sign or not column.strip() or not sql.strip():
            raise BadInput(f"not COLUMN=SQL: {text}", where="--set", fix="for example --set \"status='completed'\"")
        found[column.strip()] = sql.strip()
    return found


def _repair_rows(
    ws: Workspace, iteration: int, expressions: Mapping[str, str], where: str, table: str, write: bool, as_json: bool
) -> None:
    from flywheel.config import run_lock
    from flywheel.maintenance import quarantine, reroute

    with run_lock.hold_workspace(ws):
        reroute.settle_pending_decisions(ws)
        found = quarantine.prepare_repair(ws, iteration, expressions, where, table)
        if write:
            quarantine.apply_repair(ws, found)
        reroute.settle_pending_decisions(ws)
    if as_json:
        told = {**vars(found), "difference": vars(found.difference), "written": write}
        click.echo(json.dumps(told, default=str, allow_nan=False))
        return
    click.echo(
        f"iteration {iteration_label(iteration)}: {found.rows} rows of {table}, of {found.trajectories} trajectories"
    )
    for one in found.examples:
        click.echo("  " + json.dumps(one, default=str))
    for how, count in found.routed.items():
        click.echo(f"  {count} to {how}")
    if found.difference.stale:
        click.echo(f"  made from the stores as they were, and not made again: {', '.join(found.difference.stale)}")
    click.echo("  written, and recorded" if write else "  nothing was written: add --write")


@click.command(
    epilog="Example: flywheel data catalog catalog.duckdb && duckdb -readonly catalog.duckdb 'from iterations'"
)
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@FOLDER_OPTION
def catalog_command(file: Path | None, workspace: Path | None) -> None:
    """Describe the tables, views and macros for SQL, or write them to a DuckDB FILE.

    The file holds no rows, but reads the workspace's Parquet files: open it with DuckDB, from any language, without
    flywheel. Write it anew after each iteration.
    """
    from flywheel.store.catalog import database

    if file is None:
        click.echo(database.render_catalog_reference(), nl=False)
        return
    database.write_catalog_file(Workspace.find(workspace), file)
    click.echo(file)


@click.command(epilog="Example: flywheel data view t0123456789abcdef012")
@click.argument("trajectory")
@WORKSPACE_OPTION
def view_command(trajectory: str, ws: Workspace) -> None:
    """Write a page that replays one trajectory. It has screens, actions, thoughts, score, route and lineage."""
    from flywheel.ui.report import pages

    click.echo(pages.write_trajectory_page(ws, trajectory))
