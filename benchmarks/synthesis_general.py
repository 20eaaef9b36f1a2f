"""Explore foreign sites, and hold what was found against a list that a person wrote before.

`functions_found`: share of the hand-made list (`synthesis_functions.txt`). `replayed_twice`: of the tasks written,
those whose script, played again twice in a run's own environment, scores 0 at each step before its last and 1 there.
`trivial`: tasks of one action. Sites: `--sites`; packages as `flywheel env page fetch` fetches them.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from flywheel.config import SandboxSettings
from flywheel.envs.browser.pages.manifest import find_page_manifest, load_page_manifest, parse_manifest_file
from flywheel.envs.browser.pages.session import ManifestPages
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.tasks.page_tasks import make_page_task
from flywheel.synthesis.exploration.page_view import read_page_view
from flywheel.synthesis.exploration.site_explorer import ExploreBudget
from flywheel.synthesis.exploration.site_source import find_site
from flywheel.synthesis.exploration.site_tasks import explore_site
from flywheel.synthesis.exploration.steps import ScriptStep, play_step
from flywheel.utils.errors import EnvError

_LIST = Path(__file__).with_name("synthesis_functions.txt")
_DOCS = "usr/share/doc"
# Site -> where it begins, in place of the shipped manifest's first page; "": there.
SITES = {
    "datasette": "",
    "jquery-ui": f"{_DOCS}/libjs-jquery-ui-docs/examples/index.html",
    "click-docs": f"{_DOCS}/python-click-doc/html/index.html",
}
GOAL = 0.8


def read_hand_list(site: str) -> list[tuple[str, str, str, str]]:
    """Read a site's rows: patterns of page, control and change, and words."""
    lines = [line for line in _LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    rows = [[part.strip() for part in re.split(r" \|(?= )", line)] for line in lines]
    return [tuple(row[1:]) for row in rows if row[0] == site]


def match_functions(rows: list[tuple[str, str, str, str]], functions: list[dict[str, Any]]) -> list[str]:
    """Return the words of the rows that no function found matches."""
    missing = []
    for page, control, change, words in rows:
        hit = any(
            re.search(page, one["page"]) and re.search(control, one["control"])
            and re.search(change, " ".join(one["changes"]))
            for one in functions
        )  # fmt: skip
        missing += [] if hit else [words]
    return missing


async def replay(path: Path) -> dict[str, list[bool]]:
    """Play each task's script twice from a reset; returns whether it held, by task."""
    manifest, held = load_page_manifest(path), {}
    settings = SandboxSettings(browsers=1, pages=1, timeout_s=20)
    async with ManifestPages({manifest.name: manifest}) as pages, BrowserPool(settings, pages) as pool:
        for name, one in manifest.tasks.items():
            task, held[name] = make_page_task(manifest, name, 0, "train"), []
            for _ in range(2):
                try:
                    async with pool.env() as env:
                        result = await env.reset(task, task.seed)
                        view, scores = await read_page_view(env.tab), [result.info["score"]]
                        for step in one.proof["script"]:
                            view, _, result = await play_step(env, ScriptStep(**step), view)
                            scores.append(result.info["score"])
                        held[name].append(scores[-1] == 1 and not any(scores[:-1]))
                except EnvError:
                    held[name].append(False)
    return held


def run(args: Any) -> dict[str, Any]:
    """Explore the sites. args: `sites` (names), `tasks`, `pages`, `actions`, each optional. Returns figures by site."""
    figures: dict[str, Any] = {}
    for site in getattr(args, "sites", None) or SITES:
        with tempfile.TemporaryDirectory() as folder:
            raw = parse_manifest_file(find_page_manifest(site))
            source = find_site(site, 0)
            if SITES[site]:
                source.raw |= {"start": SITES[site], "viewport": [1024, 720]}
                source.raw.pop("ready", None)
            budget = ExploreBudget(
                pages=getattr(args, "pages", None) or 90,
                actions=getattr(args, "actions", None) or 1300,
                seconds=3 * 3600,  # how busy the machine is shall not tell what is found
            )
            began, cpu = time.monotonic(), time.process_time()
            made = explore_site(source, Path(folder), most=getattr(args, "tasks", None) or 25, budget=budget)
            rows = read_hand_list(site)
            missing = match_functions(rows, made.funnel["functions"])
            held = asyncio.run(replay(made.path))
            figures[site] = {
                "functions_found": 1 - len(missing) / len(rows),
                "of": len(rows),
                "missing": missing,
                "functions": len(made.funnel["functions"]),
                "tasks": len(made.tasks),
                "replayed_twice": sum(all(one) for one in held.values()) / len(held),
                "trivial": sum(len(one["proof"]["actions"]) < 2 for one in made.tasks.values()),
                "title": raw["title"],
                "counts": made.funnel["counts"],
                "seconds": time.monotonic() - began,
                "cpu_s": time.process_time() - cpu,
            }
            print(json.dumps({"site": site, **figures[site]}, ensure_ascii=False), flush=True)
    found = min(one["functions_found"] for one in figures.values())
    again = min(one["replayed_twice"] for one in figures.values())
    trivial = sum(one["trivial"] for one in figures.values())
    met = found >= GOAL and again == 1 and trivial == 0
    return {"case": "general", "functions_found": found, "replayed_twice": again, "trivial": trivial, "met": met,
            "sites": figures}  # fmt: skip


if __name__ == "__main__":
    from argparse import ArgumentParser

    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--sites", nargs="*", choices=list(SITES))
    for name in ("tasks", "pages", "actions"):
        parser.add_argument(f"--{name}", type=int)
    print(json.dumps(run(parser.parse_args()), ensure_ascii=False))
