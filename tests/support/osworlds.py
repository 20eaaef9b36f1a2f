"""Task files in OSWorld's form, for tests, and a workspace with a manifest of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flywheel.config import Settings, parse_settings
from flywheel.envs import registry

THEIRS = Path(__file__).parent / "data" / "osworld"
PHOTOS = {
    "monk252520thailand252520wat252520arun252520scaled25255B225255D.jpg", "hong-kong-china.jpg", "hk_group_photo.jpg",
    "us_3.png", "emnlp2023.jpg",
}  # fmt: skip
EXPECTED = {"type": "rule", "rules": {"expected": "yes\n"}}


def execute(command: str | list[str]) -> dict[str, Any]:
    return {"type": "execute", "parameters": {"command": command, "shell": isinstance(command, str)}}


def printed(command: str) -> dict[str, Any]:
    return {"type": "vm_command_line", "command": command, "shell": True}


def mine(path: str) -> dict[str, Any]:
    return {"type": "vm_file", "path": f"/home/user/{path}", "dest": path}


def gold(name: str) -> dict[str, Any]:
    return {"type": "cloud_file", "path": f"https://example.org/gold/{name}", "dest": name}


RIGHT = {"func": "exact_match", "result": printed("echo yes"), "expected": EXPECTED}


def example(evaluator: Mapping[str, Any], config: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "0", "snapshot": "os", "instruction": "Do {it}.", "source": "", "trajectory": "trajectories/",
        "related_apps": ["os"], "config": config or [], "evaluator": evaluator, **more,
    }  # fmt: skip


def forget() -> None:
    for of in ("terminal", "computer"):
        registry.find_backend(of).own.clear()


class Workspace:
    """A folder with a manifest, task files and copies of what they download."""

    def __init__(self, root: Path) -> None:
        self.root, self.said = root, {"tasks": ["tasks"], "files": "files", "max_steps": 6}
        for name in ("tasks", "files"):
            (root / name).mkdir()

    def add(self, name: str, task: Mapping[str, Any] | str) -> None:
        text = task if isinstance(task, str) else json.dumps({**task, "id": name})
        (self.root / "tasks" / f"{name}.json").write_text(text)

    def file(self, name: str, content: str) -> None:
        (self.root / "files" / name).write_text(content)

    def load(self, of: str = "terminal") -> Any:
        forget()
        manifest = {"kind": of, "world": "theirs", "osworld": self.said}
        (self.root / "world.json").write_text(json.dumps(manifest))
        registry.load_external_suites(self.settings, self.root)
        return registry.get_task_suite("theirs")

    @property
    def settings(self) -> Settings:
        block = {"domains": {"office": ["theirs"]}, "worlds": ["world.json"], "levels": [1], "held_out": 0.25}
        return parse_settings({"synthesis": block, "merge": {"weights": {"office": 1.0}}}, where="test")


@contextmanager
def opened(root: Path) -> Iterator[Workspace]:
    yield Workspace(root)
    forget()
