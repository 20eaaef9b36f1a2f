"""`flywheel page`: third-party web pages as tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flywheel.commands.options import JSON, WORKSPACE, workspace_here
from flywheel.errors import BadInput, of_place


@click.group(epilog="Example: flywheel page try my-page/manifest.yaml --seed 3 --screen screen.png")
def page() -> None:
    """Third-party web pages as tasks, by a manifest alone."""


@page.command("list", epilog="Example: flywheel page list")
@WORKSPACE
@JSON
def list_pages(workspace: Path | None, as_json: bool) -> None:
    """The manifests that ship with flywheel, and those that the workspace's settings name."""
    from flywheel import settings
    from flywheel.sandbox import manifests, packages, programs

    found = manifests.load_all([str(manifests.THIRD_PARTY)], Path())
    if ws := workspace_here(workspace):
        found |= manifests.load_all(settings.load(ws.params).synthesis.manifests, ws.root)
    rows = [
        {
            "name": one.name,
            "title": one.title,
            "domain": one.domain,
            "tasks": len(one.variants),
            "from": one.source,
            "ready": packages.ready(one) and programs.ready(one),
            "manifest": str(one.path),
        }
        for one in found.values()
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = Table("name", "what", "tasks", "from", "", box=None)
    for row in rows:
        fix = "" if row["ready"] else f"flywheel page fetch {row['name']}"
        table.add_row(row["name"], escape(row["title"]), str(row["tasks"]), escape(row["from"]), fix)
    Console().print(table)


@page.command("fetch", epilog="Example: flywheel page fetch miniwob")
@click.argument("manifest")
def fetch_page(manifest: str) -> None:
    """Fetch the packages that a MANIFEST (a file, or the name of a shipped one) takes its page or server from."""
    from flywheel.sandbox import manifests, packages, programs

    found = manifests.load(manifests.find(manifest))
    if found.server is not None:
        click.echo(f"installed into {programs.install(found)}")
        return
    folder, checksum = packages.fetch(found)
    manifests.check_start(found, folder)
    click.echo(f"fetched into {folder}\nsha256: {checksum}{'' if found.sha256 else '  (put it into the manifest)'}")


@page.command("try", epilog="Example: flywheel page try my-page/manifest.yaml --seed 3 --screen screen.png")
@click.argument("manifest")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**31 - 1))
@click.option("--variant", help="One of the manifest's; default: the first.")
@click.option("--screen", type=click.Path(path_type=Path, dir_okay=False), help="A PNG of the first screen.")
@click.option("--no-check", is_flag=True, help="Leave out the conformance suite (determinism and the rest).")
@click.option("--timeout", default=10.0, show_default=True, type=click.FloatRange(0.1), help="Seconds, for one step.")
@JSON
def try_page(
    manifest: str, seed: int, variant: str | None, screen: Path | None, no_check: bool, timeout: float, as_json: bool
) -> None:
    """Open the page of a MANIFEST, reset it with a seed, read it, play at random, check it; say what is wrong."""
    import asyncio

    from flywheel.sandbox import manifests, trial
    from flywheel.settings import Sandbox, Settings
    from flywheel.synthesis.pages import make_task

    found = manifests.load(manifests.find(manifest))
    chosen = variant or found.variants[0]
    if chosen not in found.variants:
        raise BadInput(f"no variant {chosen}", where="--variant", fix=f"one of: {', '.join(found.variants)}")
    lines: list[tuple[str, str]] = []

    def say(what: str, told: str) -> None:
        lines.append((what, told))
        if not as_json:
            click.echo(f"{what:<18} {' '.join(told.split())}")

    task = make_task(found, chosen, seed, "eval")
    settings = Settings(sandbox=Sandbox(browsers=1, pages=2, timeout_s=timeout))
    picture = screen or Path(f"{found.name}-{chosen}-{seed}.png")
    with of_place(picture):
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.touch()
    result = asyncio.run(trial.try_page(found, task, settings, picture, say, check=not no_check))
    verdict = "it works" if result.ok else f"it does not work: {result.wrong[0]}"
    if as_json:
        click.echo(json.dumps({"ok": result.ok, "verdict": verdict, "said": lines, **vars(result)}))
    else:
        for text in (*result.wrong[1:], *result.doubtful):
            click.echo(f"{'also':<18} {text}")
        click.echo(f"{found.name}: {verdict}")
    sys.exit(not result.ok)
