"""Bring a workspace that an earlier version of flywheel made up to date (`flywheel workspace migrate`).

A step changes one thing wherever it stands in the workspace, in what DVC records of it too. It looks at what is there,
so it may run again at any time: what a killed run has changed is not changed twice. The format, which tells other
commands that all steps are done, is written last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from flywheel import config
from flywheel.config import renamed, run_lock
from flywheel.config.workspace import FORMAT, Workspace
from flywheel.maintenance import table_migration
from flywheel.store.versioning import dvc_files, git_tags
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_text


def migrate_workspace(ws: Workspace) -> Iterator[str]:
    """Run each migration step that is left, and yield a line for each file that was changed.

    Nothing happens until it is iterated; it holds the workspace's lock, and commits at the end where `versioning.git`
    is set. One that was cut off is run again. Raises BadInput where the workspace is of a later version or a file
    cannot be read, WorkspaceBusy where a run holds it.
    """
    if (found := ws.read_format()) > FORMAT:
        raise BadInput(
            f"the workspace has format {found}, and this version knows {FORMAT}", where=ws.root, fix="update flywheel"
        )
    with run_lock.hold_workspace(ws):
        changed = False
        for step in STEPS:
            for line in step(ws):
                changed = True
                yield line
        if found != FORMAT:
            changed = True
            dvc_files.write_workspace_dvc_yaml(ws, max(_begun(ws), default=0))
            yield f"{ws.iterations_index.name}: format {found} -> {FORMAT}"
        if changed and config.load_settings(ws.params).versioning.git:
            git_tags.commit_workspace(ws, "flywheel workspace migrate")


def _places(ws: Workspace) -> Iterator[Workspace]:
    """The workspace, and what `flywheel iteration rollback` has set aside."""
    yield ws
    yield from (Workspace(path) for path in sorted((ws.state / "aside").glob("after-*")))


def _begun(ws: Workspace) -> list[int]:
    folders = (ws.root / "iterations").glob("[0-9]*")
    return sorted(int(path.name) for path in folders if dvc_files.dvc_yaml_path(ws, int(path.name)).exists())


# Settings: the workspace's own, each iteration's copy, and the values that DVC has recorded of the copies.


def _rename_settings(ws: Workspace) -> Iterator[str]:
    yield from _rename_in_file(ws, ws.params)
    for place in _places(ws):
        for k in _begun(place):
            yield from _rename_in_file(ws, place.frozen_params(k))
            yield from _rename_in_lock(ws, dvc_files.dvc_lock_path(place, k))


def _rename_in_file(ws: Workspace, path: Path) -> Iterator[str]:
    if not path.exists():
        return
    text, changes = renamed.rename_in_text(path.read_text(encoding="utf-8"), ws.relative(path))
    if changes:
        write_text(path, text)
        yield f"{ws.relative(path)}: {', '.join(changes)}"


def _rename_in_lock(ws: Workspace, path: Path) -> Iterator[str]:
    entries, count = dvc_files.read_dvc_lock(path), 0
    for entry in entries.values():
        for blocks in entry.get("params", {}).values():
            for block, values in blocks.items():
                now = renamed.rename_block(block, values, ws.relative(path))
                if now != values:
                    blocks[block] = dict(sorted(now.items()))
                    count += 1
    if count:
        write_text(path, dvc_files.dump_dvc_lock(entries))
        yield f"{ws.relative(path)}: {count} blocks of parameters"


def _replace(file: str, old: str, new: str) -> Callable[[Workspace], Iterator[str]]:
    """Make the step that puts a text in place of another one in a file of the workspace."""

    def apply(ws: Workspace) -> Iterator[str]:
        path = ws.root / file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if old in text:
            write_text(path, text.replace(old, new))
            yield f"{file}: {old.removeprefix('cmd: ').strip()} -> {new.removeprefix('cmd: ').strip()}"

    return apply


# Each changes what it finds and yields a line for each file that it has changed. In order: whoever adds one at the end
# raises `FORMAT` by one (config/workspace.py).
STEPS: tuple[Callable[[Workspace], Iterator[str]], ...] = (
    _rename_settings,
    # The build step, for those who deploy with Prefect's own command.
    _replace("prefect.yaml", "flows.code.fingerprint", "flows.code_version.code_version_build_step"),
    _replace("dvc.yaml", "cmd: flywheel report\n", "cmd: flywheel iteration report\n"),
    lambda ws: table_migration.update_tables(ws, _places(ws)),
)
