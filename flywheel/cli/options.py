"""Define the options that several commands share, and parse NAME=VALUE."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from flywheel.config.workspace import Workspace
from flywheel.utils.errors import BadInput

_WORKSPACE = "--workspace", "-w"
_FOLDER = {"type": click.Path(path_type=Path), "help": "Folder of the workspace; default: the current one."}
# WORKSPACE_OPTION gives a command the workspace, FOLDER_OPTION the folder as typed: that command works without one.
WORKSPACE_OPTION = click.option(
    *_WORKSPACE, "ws", callback=lambda context, parameter, folder: Workspace.find(folder), **_FOLDER
)
FOLDER_OPTION = click.option(*_WORKSPACE, **_FOLDER)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def set_option(help: str) -> Callable:
    """Make the option `--set NAME=VALUE`, which `parse_overrides` reads."""
    return click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help=help)


def find_workspace_here(folder: Path | None) -> Workspace | None:
    """Return the workspace in `folder`, by default in the current folder; None where there is none and none was named.
    Raises BadInput where the named folder has none, or its files are of another version."""
    return Workspace.find(folder) if folder or (Path.cwd() / "params.yaml").is_file() else None


def parse_overrides(assignments: tuple[str, ...]) -> dict:
    """Parse each NAME=VALUE to dotted name -> value. Raises BadInput for another form, or a value that is not YAML."""
    import yaml

    from flywheel.utils import yaml_text

    values = {}
    for text in assignments:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise BadInput(f"not NAME=VALUE: {text}", where="--set", fix="for example --set rollout.n_rollouts=8")
        try:
            values[name.strip()] = yaml_text.parse_yaml(value)
        except yaml.YAMLError:
            raise BadInput(f"not a value: {value}", where=f"--set {name}", fix="numbers and words as in YAML") from None
    return values
