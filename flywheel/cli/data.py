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
from flywheel.utils.errors import BadInput, DataError, DiskFull, did_you_mean

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


def _trace_options(command: Callable) -> Callable:
    split = click.Choice(["eval", "train"])
    options = (
        click.option("--split", type=split, default="eval", show_default=True, help="Kind of their tasks."),
        click.option("--licence", default="", help="Licence of the data."),
        click.option("--limit", type=click.IntRange(1), help="Import at most so many trajectories."),
        WORKSPACE_OPTION,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(epilog="Example: flywheel data import osworld results --tasks evaluation_examples")
@click.argument("folders", type=_FILE_TYPE, nargs=-1, required=True)
@click.option("--tasks", type=_FILE_TYPE, help="Folder with the task configs, for the instructions.")
@_trace_options
def osworld_command(
    folders: tuple[Path, ...], tasks: Path | None, split: str, licence: str, limit: int | None, ws: Workspace
) -> None:
    """Import OSWorld results: folders with traj.jsonl. They are evaluation tasks, unless --split train says other."""
    from flywheel.store.interop import osworld as data

    _import_traces(ws, partial(data.read_osworld, folders, tasks, split, licence), limit, data.DATASET, split)


@click.command(epilog="Example: flywheel data import inspect logs/*.eval")
@click.argument("files", type=_FILE_TYPE, nargs=-1, required=True)
@_trace_options
def inspect_command(files: tuple[Path, ...], split: str, licence: str, limit: int | None, ws: Workspace) -> None:
    """Import eval logs of Inspect: .eval or .json. They are evaluation tasks, unless --split train says other."""
    from flywheel.store.interop import inspect_logs as data

    _import_traces(ws, partial(data.read_inspect, files, split, licence), limit, data.DATASET, split)


@click.command(epilog="Example: flywheel data import atif jobs/2026-01-01__10-00-00")
@click.argument("folders", type=_FILE_TYPE, nargs=-1, required=True)
@_trace_options
def atif_command(folders: tuple[Path, ...], split: str, licence: str, limit: int | None, ws: Workspace) -> None:
    """Import Harbor's and Terminal-Bench's traces (ATIF). They are evaluation tasks, unless --split says other."""
    from flywheel.store.interop import atif as data

    _import_traces(ws, partial(data.read_atif, folders, split, licence), limit, data.DATASET, split)


@click.command(epilog="Example: flywheel data import verifiers outputs/evals")
@click.argument("paths", type=_FILE_TYPE, nargs=-1, required=True)
@_trace_options
def verifiers_command(paths: tuple[Path, ...], split: str, licence: str, limit: int | None, ws: Workspace) -> None:
    """Import verifiers' traces.jsonl and results.jsonl. They are evaluation tasks, unless --split train says other."""
    from flywheel.store.interop import verifiers_traces as data

    _import_traces(ws, partial(data.read_verifiers, paths, split, licence), limit, data.DATASET, split)


@click.command(epilog="Example: flywheel data import browser-use history.json --instruction 'find the opening hours'")
@click.argument("files", type=_FILE_TYPE, nargs=-1, required=True)
@click.option("--instruction", default="", help="The task, which a history lacks; default: FILE with .txt.")
@click.option("--images", type=_FILE_TYPE, help="Folder of the screenshots; default: screenshots beside FILE.")
@click.option(
    "--scale", type=click.FloatRange(0.1, 10), default=1.0, show_default=True, help="Screenshot's pixels a CSS pixel."
)
@_trace_options
def browser_use_command(
    files: tuple[Path, ...],
    instruction: str,
    images: Path | None,
    scale: float,
    split: str,
    licence: str,
    limit: int | None,
    ws: Workspace,
) -> None:
    """Import browser-use's histories: JSON. They are evaluation tasks, unless --split train says other."""
    from flywheel.store.interop import browser_use as data

    read = partial(data.read_browser_use, files, instruction, images, scale, split, licence)
    _import_traces(ws, read, limit, data.DATASET, split)


def _import_traces(ws: Workspace, read: Callable[..., Iterable], limit: int | None, dataset: str, split: str) -> None:
    from flywheel.store.interop.demonstration import FORMATS

    _import_records(ws, read, limit, FORMATS["not_held"][dataset])
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


@click.command(epilog='Example: flywheel data import devtools order.json --replay --instruction "Order two pens."')
@click.argument("files", type=_FILE_TYPE, nargs=-1, required=True)
@click.option("--replay", is_flag=True, help="Play them at their own addresses: what they do there is done again.")
@click.option("--manifest", help="Play them on the files of this page's manifest instead; its name or file.")
@click.option("--instruction", default="", help="The task in words; default: the recording's title.")
@click.option("--licence", default="", help="Licence of the data.")
@click.option("--limit", type=click.IntRange(1), help="Import at most so many trajectories.")
@WORKSPACE_OPTION
def devtools_command(
    files: tuple[Path, ...],
    replay: bool,
    manifest: str | None,
    instruction: str,
    licence: str,
    limit: int | None,
    ws: Workspace,
) -> None:
    """Import recordings of Chrome DevTools' Recorder (JSON). They have no screens: each is played in the sandbox."""
    from flywheel import config
    from flywheel.envs.browser.pages import manifest as manifests
    from flywheel.envs.browser.pages import packages
    from flywheel.envs.browser.pages.file_server import ServedFolder
    from flywheel.recordings import devtools as data

    if not replay and not manifest:
        fix = "--replay plays it at its own address, --manifest on the files of a page"
        raise BadInput("such a recording has no screens: it has to be played", where="flywheel data import", fix=fix)
    settings, folder = config.load_settings(ws.params), None
    if manifest:
        page = manifests.load_page_manifest(manifests.find_page_manifest(manifest))
        folder = ServedFolder(packages.find_served_folder(page))
    read = partial(data.read_devtools, files, settings.sandbox, folder, instruction, licence)
    _import_records(ws, read, limit, data.NOT_HELD)


@click.command(epilog='Example: flywheel data import rrweb events.json --instruction "Order two pens."')
@click.argument("files", type=_FILE_TYPE, nargs=-1, required=True)
@click.option("--instruction", required=True, help="The task in words: rrweb records none.")
@click.option("--package", type=_FILE_TYPE, default=Path("node_modules/rrweb"), show_default=True,
              help="Folder of the npm package rrweb, which draws the screens.")  # fmt: skip
@click.option("--licence", default="", help="Licence of the data.")
@click.option("--limit", type=click.IntRange(1), help="Import at most so many trajectories.")
@WORKSPACE_OPTION
def rrweb_command(
    files: tuple[Path, ...], instruction: str, package: Path, licence: str, limit: int | None, ws: Workspace
) -> None:
    """Import recordings of rrweb: JSON arrays of its events. Its own Replayer draws the screens."""
    from flywheel import config
    from flywheel.recordings import rrweb as data

    sandbox = config.load_settings(ws.params).sandbox
    read = partial(data.read_rrweb, files, package, sandbox, instruction, licence)
    _import_records(ws, read, limit, data.NOT_HELD)


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
    if new + there:
        click.echo(f"of their {steps} steps {unlearnt} are not learnt: a slip, or no action of the grammar")
    if holes:
        click.echo(f"{holes} of them lack steps that the data set numbers: `reviews` says which")
    for one in refused[:_REFUSED_SHOWN]:
        click.echo(f"  refused: {one.where}: {one.why}")
    if not new + there:
        raise DataError("nothing could be imported", where="; ".join(one.where for one in refused[:1]))
    _print_not_held("What the store does not hold of them:", not_held)
    click.echo(f"The next iterations take in {chosen.imports_per_iteration} of them each.")


@click.command(epilog="Example: flywheel data export webdataset --store sft --output sft-tars")
@click.argument("form", type=click.Choice(["webdataset", "huggingface", "osworld", "inspect", "atif", "verifiers"]))
@click.option("--store", type=click.Choice(["ct", "sft"]), default="sft", help="Training store to export.")
@click.option("--output", "-o", type=_FILE_TYPE, required=True, help="Folder to create.")
@click.option("--iteration", type=click.IntRange(1), help="The store as of this iteration; default: the newest.")
@WORKSPACE_OPTION
def export_command(form: str, store: str, output: Path, iteration: int | None, ws: Workspace) -> None:
    """Export a training store: a sample a step (webdataset, huggingface), or a trace a trajectory."""
    from flywheel.store.interop import atif, exports, inspect_logs, osworld, traces, verifiers_traces
    from flywheel.store.versioning import stage_records

    if output.exists():
        raise BadInput("there is something already", where=output, fix="name a folder that is not there yet")
    built = [k for k in stage_records.list_iterations(ws) if ws.manifest(k).is_file()]
    if not built:
        raise BadInput("no iteration is built yet", where=ws.root, fix="type `flywheel run`")
    if iteration not in (None, *built):
        raise BadInput("no such iteration is built", where=f"--iteration {iteration}", fix="see `flywheel status`")
    k = iteration or max(built)
    steps, title = exports.read_store_steps(ws, store, k), f"{store} store of iteration {k}"
    if form == "webdataset":
        count = exports.write_webdataset(steps, output)
    elif form == "huggingface":
        count = exports.write_hugging_face(steps, output, title)
    elif form == "osworld":
        count = osworld.write_osworld(traces.iter_traces(steps), output)
    elif form == "inspect":
        count = inspect_logs.write_inspect(traces.iter_traces(steps), output, title)
    elif form == "atif":
        count = atif.write_atif(traces.iter_traces(steps), output)
    else:
        count = verifiers_traces.write_verifiers(traces.iter_traces(steps), output)
    click.echo(f"wrote {count} steps of the {title} to {output}")
    _print_not_held("What the format does not hold:", exports.find_not_held(form))


@click.command(epilog="Example: flywheel data formats atif")
@click.argument("name", required=False)
@JSON_OPTION
def formats_command(name: str | None, as_json: bool) -> None:
    """Show what each format, or the one named NAME, does not hold, and what its points are counted in."""
    from flywheel.store.interop.demonstration import FORMATS
    from flywheel.store.interop.exports import find_not_held

    known = FORMATS["points"]
    if name not in (None, *known):
        raise BadInput(f"no format is called {name}", where="flywheel data formats", fix=did_you_mean(name, known))
    told = {
        one: {
            "points": points,
            "import": FORMATS["not_held"].get(one),
            "export": find_not_held(one) if one in FORMATS["exports"] else None,
        }
        for one, points in known.items()
        if name in (None, one)
    }
    if as_json:
        click.echo(json.dumps(told))
        return
    for one, about in told.items():
        click.echo(f"{one}: points are {about['points']}")
        if about["import"]:
            _print_not_held("  import: the store does not hold", about["import"], "    ")
        if about["export"]:
            _print_not_held("  export: the format does not hold", about["export"], "    ")


def _print_not_held(head: str, not_held: Mapping[str, str], indent: str = "  ") -> None:
    click.echo(head)
    for name, why in not_held.items():
        click.echo(f"{indent}{name}: {why}")


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


@click.command(epilog="Example: flywheel score --scorer judge --iteration 1-5    (then the same with --write)")
@click.option("--scorer", required=True, metavar="NAME[@VERSION]", help="The scorer that judges anew.")
@click.option("--iteration", "-k", "which", required=True, metavar="RANGE", help="Iterations, such as 3, 1-5 or 1-3,7.")
@click.option("--write", is_flag=True, help="Write scores, routes and stores; without it the changes are only shown.")
@JSON_OPTION
@WORKSPACE_OPTION
def score_command(scorer: str, which: str, write: bool, as_json: bool, ws: Workspace) -> None:
    """Score stored trajectories again; --write keeps what changes.

    It shows what would change in V and routes. Nothing is played. What earlier versions said stays in the view
    score_history.
    """
    from flywheel.config import run_lock
    from flywheel.maintenance import reroute, rescore
    from flywheel.store.catalog import database

    with run_lock.hold_workspace(ws):
        reroute.settle_pending_decisions(ws)
        found = rescore.prepare_rescoring(ws, scorer, rescore.parse_iterations(which))
        if write:
            rescore.apply_rescoring(ws, found)
        reroute.settle_pending_decisions(ws)
    told = [one.difference for one in found]
    if as_json:
        rows = [{**vars(one.difference), "panels": one.rule.scorers, "written": write} for one in found]
        click.echo(json.dumps(rows, default=str, allow_nan=False))
        return
    names = {"to_1": "0 -> 1", "to_0": "1 -> 0", "none_to_1": "none -> 1", "none_to_0": "none -> 0"}
    names |= {"to_none": "-> none", "moved": "routes moved", "held": "held by contract"}
    rows = [
        {"iteration": one.iteration} | {names.get(name, name): value for name, value in row.items()}
        for one in told
        for row in one.changed
    ]
    if rows:
        click.echo(database.render_result(database.table_from_mappings(rows)), nl=False)
    for one in told:
        _print_scorers(one)
    click.echo("written, and recorded" if write else "nothing was written: add --write")


def _print_scorers(found: Any) -> None:
    changed = f"{found.count} trajectories go elsewhere, {found.verdicts} scores change"
    click.echo(f"iteration {iteration_label(found.iteration)}: {changed}")
    for one in found.scorers:
        why = f" (the first: {one['reason']})" if one["failed"] else ""
        counts = f"{one['scored']} have a score, {one['abstained']} abstained, {one['failed']} without a score{why}"
        known = f"; {one['known']} known from before: a version is not asked twice" if one["known"] else ""
        click.echo(f"  {one['scorer']} {one['version']}: {counts}{known}")
    _print_stale(found)


def _print_stale(found: Any) -> None:
    if found.stale:
        click.echo(f"  made from the stores as they were, and not made again: {', '.join(found.stale)}")


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
    _print_stale(found)
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
