"""What a reviewer sees beside a run in Prefect: tables of what was written and of figures, where the report is."""

from __future__ import annotations

import base64

from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

from flywheel.report import rl
from flywheel.stages.base import Context, StageResult
from flywheel.workspace import label


def _key(ctx: Context, name: str) -> str:
    return f"{ctx.stage}-{name}".lower()


def show(ctx: Context, outcome: StageResult) -> None:
    """Tables of the stage's partitions and figures, its summary as Markdown, and what else it has to show."""
    written = [
        {"table": part.table, "rows": part.rows, "files": len(part.parts), "sha256": part.parts[0].sha256[:12]}
        for part in outcome.manifests
        if part.parts
    ]
    create_table_artifact(key=_key(ctx, "written"), table=written, description=f"{label(ctx.iteration)} {ctx.stage}")
    figures = [row for row in outcome.metrics if row["step"] == 0]
    columns = ("domain", "name", "value", "low", "high", "n")
    create_table_artifact(
        key=_key(ctx, "figures"),
        table=[{column: _round(row.get(column)) for column in columns} for row in figures],
        description="Figures measured in this stage; low and high are a 95% interval",
    )
    lines = [f"### {ctx.stage}, iteration {label(ctx.iteration)}", ""]
    lines += [f"- **{name}**: {_round(value)}" for name, value in outcome.summary.items()]
    create_markdown_artifact(key=_key(ctx, "summary"), markdown="\n".join(lines))
    for name, rows in outcome.tables.items():
        table = [{column: _round(value) for column, value in row.items()} for row in rows]
        create_table_artifact(
            key=_key(ctx, name), table=table, description=f"{label(ctx.iteration)} {ctx.stage}: {name}"
        )
    if ctx.stage.startswith("rl-"):
        _curves(ctx, outcome)


def _curves(ctx: Context, outcome: StageResult) -> None:
    """RL's curves as a picture that is in the artifact itself: no server must keep it."""
    svg = rl.sheet(outcome.metrics, f"{ctx.stage}, iteration {label(ctx.iteration)}")
    address = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    create_image_artifact(key=_key(ctx, "curves"), image_url=address, description=f"{label(ctx.iteration)} {ctx.stage}")


def tell_report(ctx: Context) -> None:
    """Where the report lies. No link: what serves it, on which port, is known only when `flywheel ui` begins."""
    create_markdown_artifact(
        key="report",
        markdown=f"The report is `{ctx.ws.report_page}`; `flywheel ui` says where it serves it.",
        description=f"The report after {label(ctx.iteration)}",
    )


def _round(value):
    return round(value, 4) if isinstance(value, float) else value
