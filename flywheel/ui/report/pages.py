"""Write the report's pages (the index, and one page per trajectory), and PNGs of pages."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
from jinja2 import Environment, PackageLoader, StrictUndefined

from flywheel.config import SandboxSettings
from flywheel.config.workspace import Workspace
from flywheel.envs.browser.driver import chromium
from flywheel.store.catalog import database
from flywheel.store.schema import SCHEMA_VERSION
from flywheel.store.versioning import stage_records
from flywheel.ui.report import charts, figures, replay
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_text

Row = dict[str, Any]
_ITERATIONS_SHOWN = 10


def write_report(ws: Workspace, *, everything: bool = False) -> Path:
    """Write the report's page, `report/index.html`, and return its path; an earlier one is replaced.

    A workspace without iterations gets a page that says so. everything: show all iterations; else the newest ten, with
    earlier ones in the curves only. Raises what `run_query` does, such as DataError for a damaged file; DataError as
    `connect_catalog`, and where DVC's file of an iteration is lost; DiskFull.
    """
    with database.connect_catalog(ws) as connection:
        rows = figures.query_report_iterations(connection)
        since = 0 if everything or not rows else max(0, rows[-1]["iteration"] - _ITERATIONS_SHOWN)
        begun = stage_records.list_iterations(ws)
        stages = stage_records.stage_names(ws, begun[-1]) if begun else ()  # in the order of the newest iteration
        minute_iterations, minutes = figures.query_stage_minutes(connection, stages)
        alignment, utterance = figures.query_alignment(connection, since)
        rl_curves, rl_worlds = charts.load_rl_charts(connection, since)
        text = render_template(
            "report.html",
            rows=rows,
            iterations=[row for row in rows if row["iteration"] > since],
            earlier=sum(row["iteration"] <= since for row in rows),
            domains=figures.list_evaluated_domains(rows),
            funnels=figures.query_funnels(connection),
            p_v1=figures.draw_p_v1(connection, since),
            success=figures.draw_held_out_success(rows, since),
            headroom=figures.query_headroom(connection, since),
            curves=figures.draw_losses(connection, since),
            rl_curves=rl_curves,
            rl_worlds=rl_worlds,
            downsampled=charts.query_downsampled_tasks(connection),
            variance_rises=figures.query_variance_rises(connection, since),
            reward_audit=figures.query_reward_audit(connection, since),
            made=figures.read_made_funnels(ws),
            people=figures.query_people_work(connection, ws, since),
            alignment=alignment,
            utterance=utterance,
            replays=figures.pick_replays(connection, figures.list_evaluated_domains(rows), since),
            **figures.query_report_lists(connection, since),
            minute_iterations=minute_iterations,
            minutes=minutes,
            lineage=figures.query_model_lineage(connection, since),
            workspace=ws.root.name,
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            schema_version=SCHEMA_VERSION,
            docs=(ws.report / "docs" / "index.html").exists(),
        )
    write_text(ws.report_page, text.replace(_CONTENTS, _render_contents(text)))
    return ws.report_page


_CONTENTS = "<!-- contents -->"
_SECTION = re.compile(r'<section id="([\w-]+)">\s*<h2>(.*?)</h2>')


def _render_contents(text: str) -> str:
    """Render links to the page's sections; "" where it has fewer than two."""
    found = _SECTION.findall(text)
    links = " ".join(f'<a href="#{name}">{title}</a>' for name, title in found)
    return f'<nav class="contents" aria-label="Contents">{links}</nav>' if len(found) > 1 else ""


def render_template(template: str, **values: Any) -> str:
    """Render the file `template` of this package's templates with `values`, which are escaped."""
    return _templates().get_template(template).render(palette=charts.tone_stylesheet(), **values)


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("flywheel.ui.report"),
        autoescape=lambda name: name != "style.css",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_trajectory_page(
    ws: Workspace, trajectory_id: str, connection: duckdb.DuckDBPyConnection | None = None
) -> Path:
    """Write `report/trajectories/<trajectory_id>.html` and return its path; an earlier one is replaced.

    In the file's name each character other than letters, digits, `_`, `.` and `-` becomes `_`. connection: to the
    catalogue; None opens one. Raises BadInput for an unknown trajectory, DataError for a damaged or missing file and as
    `connect_catalog`, FlywheelError as `run_query`, DiskFull.
    """
    with contextlib.nullcontext(connection) if connection else database.connect_catalog(ws) as connection:
        found = replay.load_replay(connection, trajectory_id)
        if found is None:
            near = database.query_rows(
                connection, "SELECT trajectory_id FROM trajectories ORDER BY iteration DESC, trajectory_id LIMIT 1"
            )
            hint = f"such as {near[0]['trajectory_id']}: " if near else ""
            raise BadInput(
                f"there is no trajectory {trajectory_id}",
                where=ws.root,
                fix=f'{hint}list them with `flywheel query "SELECT trajectory_id FROM trajectories"`',
            )
    path = ws.report / "trajectories" / f"{re.sub(r'[^0-9A-Za-z_.-]', '_', trajectory_id)}.html"
    write_text(path, render_template("trajectory.html", r=found))
    return path


_TIMEOUT_MS = 30_000


def screenshot_page(page: Path, output: Path, *, width: int = 1280, height: int | None = None) -> Path:
    """Save a screenshot of the HTML file `page` as the PNG `output`; return `output`.

    width, height: in CSS pixels; a height of None takes the whole page. Raises BadInput where there is no Chromium,
    playwright's Error where it does not show the page within 30 seconds.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find_chromium(SandboxSettings()))
        try:
            # A low window, as a screenshot of the whole page is at least as high as the window.
            tab = browser.new_page(viewport={"width": width, "height": height or 100}, color_scheme="light")
            tab.set_default_timeout(_TIMEOUT_MS)
            tab.goto(page.resolve().as_uri())
            output.parent.mkdir(parents=True, exist_ok=True)
            tab.screenshot(path=str(output), full_page=height is None)
        finally:
            browser.close()
    return output


def screenshot_report(ws: Workspace, output: Path) -> Path:
    """Save the top of the report as the PNG `output`, as the README shows it; return that path.

    The report must have been written (`write_report`). output: replaced where it exists; 1280 x 1500 pixels. Starts a
    Chromium for the call. Raises as `screenshot_page`.
    """
    return screenshot_page(ws.report_page, output, width=1280, height=1500)
