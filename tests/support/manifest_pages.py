"""A page that counts its clicks, and the manifest that makes it a task."""

from __future__ import annotations

import yaml

from flywheel.envs.browser.pages import manifest

# A page with a button over the whole viewport, which counts its clicks.
BUTTON = "<button onclick='game.clicks += 1' style='position:fixed;inset:0'>more</button>"
GAME = "<script>window.game = {clicks: 0, seed: null, start(seed) { this.seed = seed; }}</script>"
COUNTER = {"index.html": GAME + BUTTON}
SAID = {
    "title": "A counter",
    "folder": ".",
    "instruction": "Click three times.",
    "reward": "game.clicks",
    "success": 3,
    "max_steps": 6,
    "domain": "games",
}


def lay(folder, files, /, **fields):
    """A folder with a page and its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    said = {key: value for key, value in {"name": folder.name, **SAID, **fields}.items() if value is not None}
    (folder / "page.yaml").write_text(yaml.safe_dump(said))
    return manifest.load_page_manifest(folder / "page.yaml")
