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
    """Make the option `--set NAME=VALUE` with the help text `help`; `parse_overrides` reads its values."""
    return click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help=help)


def find_workspace_here(folder: Path | None) -> Workspace | None:
    """Find the workspace in `folder`; if none is named, in the current folder, or None if that has no params.yaml.

    Raises as `Workspace.find`.
    """
    return Workspace.find(folder) if folder or (Path.cwd() / "params.yaml").is_file() else None


def parse_overrides(assignments: tuple[str, ...]) -> dict:
    """Parse the texts of `--set` into a dict: dotted name -> value, read as YAML.

    Raises BadInput for a text that is not NAME=VALUE, and for a value that is not YAML.
    """
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
