"""What a seed does to a manifest's page, told as it was found: another task, nothing, or nothing that was seen yet."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import Any

from flywheel.environments.env import Task
from flywheel.errors import EnvError
from flywheel.sandbox.check_seeds import SEEDS, Seeds, compare
from flywheel.sandbox.manifests import PageManifest
from flywheel.sandbox.pool import BrowserPool

# Scripts of the document and all that they loaded, where they may be read.
_NAMES_CHANCE = """(async () => {
  const loaded = performance.getEntriesByType("resource").map((entry) => entry.name)
    .filter((name) => /\\.m?js([?#]|$)/.test(name) && name.startsWith(location.origin));
  const texts = [...document.scripts].filter((script) => !script.src).map((script) => script.textContent);
  for (const name of loaded) texts.push(await fetch(name).then((answer) => answer.text(), () => ""));
  return /Math\\s*\\.\\s*random|getRandomValues|randomUUID/.test(texts.join("\\n"));
})()"""


@dataclass(frozen=True)
class SeedFinding:
    """found: in a few words. wrong, doubtful: as in a Trial; "" where there is nothing to say."""

    found: str
    wrong: str = ""
    doubtful: str = ""


async def try_seeds(pool: BrowserPool, manifest: PageManifest, task: Task) -> SeedFinding:
    """Raises EnvError where the page does not play."""
    named = False

    async def look(env: Any) -> None:
        nonlocal named
        with contextlib.suppress(EnvError):
            named = bool(await env.tab.evaluate(_NAMES_CHANCE))

    return judge(manifest, await compare(pool.env, task, look), named)


def judge(manifest: PageManifest, seeds: Seeds, named: bool) -> SeedFinding:
    """named: the page's scripts name a source of chance."""
    if seeds.differ_at is not None:
        return SeedFinding(f"holds: another seed shows {seeds}")
    tried = f"{SEEDS} other seeds gave the same screens and state, over {seeds.steps} steps of the same actions"
    if seeds.drawn:
        return SeedFinding(
            "no difference was seen",
            doubtful=(
                f"seeding: {tried}, though the page drew {seeds.drawn} numbers from its seeded chance: a difference "
                "may come later. If they decide something, record it in `state`; if they do not, write seeded: false, "
                "with splits"
            ),
        )
    if how := _hands_in(manifest):
        return SeedFinding(
            "does not hold",
            wrong=(
                f"seeding: the seed is ignored, as far as can be seen: {tried}, and no number of chance was drawn, "
                f"though {how} hands it in (see that the page uses it; where it shows later, record in `state` what it "
                "decides)"
            ),
        )
    if named:
        return SeedFinding(
            "no difference was seen",
            doubtful=(
                f"seeding: {tried}, and no number of chance was drawn, though the page's scripts name Math.random: a "
                "difference may come later. If none does, write seeded: false, with splits"
            ),
        )
    return SeedFinding(
        "does not hold",
        wrong=(
            "seeding: there is no chance in this page, and the manifest does not hand the seed in: every seed gives "
            f"the same task ({tried}). Write seeded: false, with splits: [eval] or [train]"
        ),
    )


def _hands_in(manifest: PageManifest) -> str:
    """The field by which the page may know its seed; "" where there is none."""
    if not isinstance(manifest.reset, str):
        return "reset"
    if re.search(r"\bseed\b", manifest.reset):
        return "reset"
    server = manifest.server.model_dump_json() if manifest.server else ""
    return "server" if "{seed}" in server else ""
