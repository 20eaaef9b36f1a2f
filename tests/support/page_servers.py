"""A shop with a login and a server of its own, as a page by manifest."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from flywheel.envs.browser.pages import manifest

ORDERS = Path(__file__).parent / "orders"
SERVER = {
    "command": ["python", "server.py", "{port}"],
    "folder": "site",
    "ready": "/up",
    "setup": [["python", "{manifest}/make.py", "{seed}"]],
}
SAID = {
    "name": "orders",
    "title": "A shop with a login",
    "instruction": "Order two mugs.",
    "start": "orders",
    "login": {
        "address": "/login",
        "fill": {"[name=user]": "ada", "[name=password]": "secret"},
        "submit": "button",
        "done": "document.title === 'Orders'",
    },
    "reward": {"sqlite": "shop.db", "query": "select count(*) from orders where item = 'mug'"},
    "success": 2,
    "end": {"sqlite": "shop.db", "query": "select count(*) > 0 from orders where item = 'cup'"},
    "state": {
        "seed": {"sqlite": "shop.db", "query": "select :seed"},
        "old": {"sqlite": "shop.db", "query": "select count(*) from orders where item = 'old'"},
    },
    "max_steps": 6,
    "viewport": [320, 240],
}


def lay(folder, server=None, **fields):
    """The shop with its manifest."""
    (folder / "site").mkdir(parents=True, exist_ok=True)
    shutil.copy(ORDERS / "server.py", folder / "site")
    shutil.copy(ORDERS / "make.py", folder)
    said = {**SAID, "server": {**SERVER, **(server or {})}, **fields}
    said = {key: value for key, value in said.items() if value is not None}
    (folder / "page.yaml").write_text(yaml.safe_dump(said))
    return manifest.load_page_manifest(folder / "page.yaml")
