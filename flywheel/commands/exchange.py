"""Commands for data of other formats: import, export."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from flywheel.commands.options import WORKSPACE
from flywheel.errors import BadInput, DataError
from flywheel.workspace import Workspace

_TOLD = 5  # refused records that are told one by one
_FILE = click.Path(path_type=Path)


@click.group("import", epilog="Example: flywheel import mind2web data/train-*.parquet")
def import_() -> None:
    """Take in demonstrations of another data set. They wait in the recordings folder for the next iteration."""


@import_.command(epilog="Example: flywheel import agentnet agentnet_ubuntu_5k.jsonl --images images-full.zip")
@click.argument("file", type=_FILE)
@click.option("--images", type=_FILE, required=True, help="The screens: a zip, or a folder.")
@click.option("--licence", help="Of the data. Default: what its publisher says, mit.")
@click.option("--limit", type=click.IntRange(1), help="Trajectories to take, at most.")
@WORKSPACE
def agentnet(file: Path, images: Path, licence: str | None, limit: int | None, workspace: Path | None) -> None:
    """AgentNet (OpenCUA): JSON lines, and screens in a zip."""
    from flywheel.exchange import agentnet as data

    _take(Workspace.find(workspace), data.read(file, images, licence or data.LICENCE), limit, data.NOT_HELD)


@import_.command(epilog="Example: flywheel import mind2web data/train-*.parquet")
@click.argument("files", type=_FILE, nargs=-1, required=True)
@click.option("--licence", help="Of the data. Default: what its publisher says, openrail.")
@click.option("--limit", type=click.IntRange(1), help="Trajectories to take, at most.")
@WORKSPACE
def mind2web(files: tuple[Path, ...], licence: str | None, limit: int | None, workspace: Path | None) -> None:
    """Multimodal-Mind2Web: Parquet files of one split. What its publisher holds out is never trained on."""
    from flywheel.exchange import mind2web as data

    _take(Workspace.find(workspace), data.read(files, licence or data.LICENCE), limit, data.NOT_HELD)


def _take(ws: Workspace, records: Iterable, limit: int | None, not_held: Mapping[str, str]) -> None:
    from flywheel import settings
    from flywheel.exchange.demonstration import Refused, save

    chosen = settings.load(ws.params).recording
    recordings = ws.resolve(chosen.folder)
    recordings.mkdir(parents=True, exist_ok=True)
    new, there, unlearnt, steps, refused = 0, 0, 0, 0, []
    for record in records:
        if not isinstance(record, Refused):
            try:
                saved = save(record, recordings)
            except OSError as error:
                record = Refused(record.origin, f"a screen is no picture: {error}")
        if isinstance(record, Refused):
            refused.append(record)
            continue
        new, there = new + saved, there + (not saved)
        steps += len(record.steps)
        unlearnt += sum(bool(step.fault or step.slip) for step in record.steps)
        if limit and new + there >= limit:
            break
    click.echo(f"imported {new} trajectories to {chosen.folder}, {there} were there, {len(refused)} refused")
    click.echo(f"of their {steps} steps {unlearnt} are not learnt: a slip, or no action of the grammar")
    for one in refused[:_TOLD]:
        click.echo(f"  refused: {one.where}: {one.why}")
    _tell_lost("What the store does not hold of them:", not_held)
    if not new + there:
        raise DataError("nothing could be imported", where="; ".join(one.where for one in refused[:1]))
    click.echo(f"The next iterations take in {chosen.imports_per_iteration} of them each.")


@click.command(epilog="Example: flywheel export webdataset --store sft --output sft-tars")
@click.argument("form", type=click.Choice(["webdataset", "huggingface"]))
@click.option("--store", type=click.Choice(["ct", "sft"]), default="sft", show_default=True, help="Training store.")
@click.option("--output", "-o", type=_FILE, required=True, help="A folder that is not there yet.")
@click.option("--iteration", type=click.IntRange(1), help="As it was for this one. Default: the newest.")
@WORKSPACE
def export(form: str, store: str, output: Path, iteration: int | None, workspace: Path | None) -> None:
    """Write a training store, a step a sample, for WebDataset or Hugging Face's datasets."""
    from flywheel.exchange import hugging_face, samples, webdataset
    from flywheel.store import versioning

    ws = Workspace.find(workspace)
    if output.exists():
        raise BadInput("there is something already", where=output, fix="name a folder that is not there yet")
    built = [k for k in versioning.iterations(ws) if ws.manifest(k).is_file()]
    if iteration not in (None, *built) or not built:
        raise BadInput(
            "no such iteration is built", where=f"--iteration {iteration or ''}", fix="see `flywheel status`"
        )
    k = iteration or max(built)
    steps = samples.read(ws, store, k)
    if form == "webdataset":
        count, not_held = webdataset.write(steps, output), webdataset.NOT_HELD
    else:
        title = f"{store} store of iteration {k}"
        count, not_held = hugging_face.write(steps, output, title), hugging_face.NOT_HELD
    click.echo(f"wrote {count} steps of {store} to {output}")
    _tell_lost("What the format does not hold:", not_held)


def _tell_lost(head: str, not_held: Mapping[str, str]) -> None:
    click.echo(head)
    for name, why in not_held.items():
        click.echo(f"  {name}: {why}")
