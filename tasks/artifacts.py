"""Publish a stage's results as Prefect artifacts: what it wrote and measured, RL's curves, the path of the report."""

from __future__ import annotations

import base64

from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

from flywheel.config.workspace import iteration_label
from flywheel.pipeline.stage import StageContext, StageResult
from flywheel.ui.report import charts


def _key(ctx: StageContext, name: str) -> str:
    return f"{ctx.stage}-{name}".lower()


def publish_stage_artifacts(ctx: StageContext, outcome: StageResult) -> None:
    """Publish the results of a stage as artifacts on the run's page in Prefect.

    They are tables of its partitions and of its figures, its summary as Markdown, its own tables, and for RL the
    training curves. ctx: of the stage. outcome: what it wrote. Call it within a task or a flow. A stage that runs again
    gives each artifact a new version. Raises httpx.HTTPError where Prefect's server does not answer.
    """
    written = [
        {"table": part.table, "rows": part.rows, "files": len(part.parts), "sha256": part.parts[0].sha256[:12]}
        for part in outcome.manifests
        if part.parts
    ]
    create_table_artifact(
        key=_key(ctx, "written"), table=written, description=f"{iteration_label(ctx.iteration)} {ctx.stage}"
    )
    figures = [row for row in outcome.metrics if row["step"] == 0]
    columns = ("domain", "name", "value", "low", "high", "n")
    create_table_artifact(
        key=_key(ctx, "figures"),
        table=[{column: _round(row.get(column)) for column in columns} for row in figures],
        description="Figures measured in this stage; low and high are a 95% interval",
    )
    lines = [f"### {ctx.stage}, iteration {iteration_label(ctx.iteration)}", ""]
    lines += [f"- **{name}**: {_round(value)}" for name, value in outcome.summary.items()]
    create_markdown_artifact(key=_key(ctx, "summary"), markdown="\n".join(lines))
    for name, rows in outcome.tables.items():
        table = [{column: _round(value) for column, value in row.items()} for row in rows]
        create_table_artifact(
            key=_key(ctx, name), table=table, description=f"{iteration_label(ctx.iteration)} {ctx.stage}: {name}"
        )
    if ctx.stage.startswith("rl-"):
        _curves(ctx, outcome)


def _curves(ctx: StageContext, outcome: StageResult) -> None:
    """Publish RL's curves as a picture inside the artifact, so that no server must keep it."""
    svg = charts.draw_rl_sheet(outcome.metrics, f"{ctx.stage}, iteration {iteration_label(ctx.iteration)}")
    address = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    create_image_artifact(
        key=_key(ctx, "curves"), image_url=address, description=f"{iteration_label(ctx.iteration)} {ctx.stage}"
    )


def publish_report_artifact(ctx: StageContext) -> None:
    """Publish the path of the workspace's report as an artifact on the run's page in Prefect.

    No link: its server and port are known only when `flywheel ui` runs. Raises as `publish_stage_artifacts`.
    """
    create_markdown_artifact(
        key="report",
        markdown=f"The report is `{ctx.ws.report_page}`; `flywheel ui` says where it serves it.",
        description=f"The report after {iteration_label(ctx.iteration)}",
    )


def _round(value):
    return round(value, 4) if isinstance(value, float) else value
