"""Plan the memory, disk and network of a run before it begins: `plan`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from flywheel.cli.options import JSON_OPTION, WORKSPACE_OPTION, parse_overrides, set_option
from flywheel.config.workspace import Workspace

if TYPE_CHECKING:
    from flywheel.pipeline.resource_plan import ResourcePlan

_COLUMNS = (  # of the table: heading -> part of a stage's memory
    ("weights", "weights"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer"),
    ("activations", "activations"),
    ("(padded)", "activations_padded"),
    ("logits", "logits"),
    ("screens", "screens"),
    ("V", "value_model"),
    ("cache", "cache"),
    ("policy", "policy"),
    ("server", "server"),
    ("loading", "loading"),
    ("saving", "saving"),
    ("host", "host"),
)


@click.command(epilog="Example: flywheel plan --device-memory 80GiB --set adapter.method=lora")
@WORKSPACE_OPTION
@set_option("Plan with this value of a parameter (`flywheel settings` lists them).")
@click.option("--device-memory", metavar="SIZE", help="Memory of a GPU that is not here, such as 80GiB.")
@JSON_OPTION
def plan_command(ws: Workspace, assignments: tuple[str, ...], device_memory: str | None, as_json: bool) -> None:
    """Plan memory, disk and network of each stage; say what to set.

    Settings are told where a stage or the disk does not fit; then the exit code is 1. It reads the checkpoint's
    config.json alone.
    """
    from flywheel import config
    from flywheel.pipeline import resource_plan

    settings = config.load_settings(ws.params, parse_overrides(assignments))
    plan = resource_plan.plan_resources(ws, settings, resource_plan.read_device_memory(device_memory))
    if as_json:
        click.echo(json.dumps(plan.row()))
    else:
        for line in _describe(plan):
            click.echo(line)
    sys.exit(not plan.fits)


def _describe(plan: ResourcePlan) -> list[str]:
    from flywheel.pipeline.resource_plan import describe_disk, describe_uncounted, format_size

    device = plan.device
    what = f"a GPU of {format_size(device.bytes)}"
    if device.kind == "cpu":
        what = f"a CPU, {format_size(device.bytes)}; torch finds no GPU (--device-memory 80GiB plans for one)"
    lines = [f"{plan.model}: {plan.parameters:,} parameters, {plan.trained:,} trained; {what}", ""]
    used = [(head, part) for head, part in _COLUMNS if any(one.parts.get(part) for one in plan.stages)]
    rows = [["stage", "on", *(head for head, _ in used), "peak", "of", ""]]
    for one in plan.stages:
        sizes = [format_size(one.parts[part]) if one.parts.get(part) else "" for _, part in used]
        ends = [format_size(one.needs) if one.needs else "", format_size(one.has) if one.has else "?"]
        rows.append([one.stage, one.device, *sizes, *ends, "fits" if one.fits else "does not fit"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (text.ljust(n) if i < 2 else text.rjust(n) for i, (text, n) in enumerate(zip(row, widths, strict=True)))
        lines.append("  ".join(cells).rstrip())
    lines.append("")
    for note in dict.fromkeys(one.note for one in plan.stages if one.note):
        lines.append(f"{', '.join(one.stage for one in plan.stages if one.note == note)}: {note}")
    lines.append(f"keys and values: {plan.kv_token / 1024:.0f} KiB a token")
    if server := plan.server:
        memory = server.memory
        lines.append(
            f"server on the same GPU: --gpu-memory-utilization {server.least} at least, {server.most} at most"
            f"{'' if server.least <= server.most else ' (none is both)'}; asleep it keeps "
            f"{format_size(memory.asleep)} there and {format_size(memory.host)} of this machine's memory; awake "
            f"{format_size(memory.weights)} of weights, {format_size(memory.adapter)} of an adapter's slot, "
            f"{format_size(memory.kv_row)} of keys and values a request at its longest ({server.rows} fit)"
        )
    if plan.uncounted:
        lines.append(describe_uncounted(plan.uncounted))
    lines.append(f"disk: {describe_disk(plan.disk)}")
    lines.append(
        f"network an iteration: {format_size(plan.network)} of models and trajectories to versioning.remote"
        if plan.network
        else "network an iteration: none (versioning.remote is empty)"
    )
    for one in plan.stages:
        if not one.fits:
            fix = f"set {', '.join(one.fixes)}" if one.fixes else "no setting makes it fit"
            lines.append(f"{one.stage} {one.shortage[1]}: {fix}")
    if not plan.disk.fits:
        lines.append(f"the disk has not the room: {f'set {plan.disk_fix}' if plan.disk_fix else 'free some space'}")
    fixes = [*(fix for one in plan.stages for fix in one.fixes), *filter(None, [plan.disk_fix])]
    if every := dict.fromkeys(fixes):
        lines.append(f"to look at them: flywheel plan {' '.join(f'--set {fix}' for fix in every)}")
    return lines
