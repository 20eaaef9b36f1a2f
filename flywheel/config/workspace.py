"""Find a workspace, check the version of its files, and name it and its paths.

A workspace is a folder with `params.yaml` and `dvc.yaml`. Paths that enter datasets are relative to it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.files import write_json

# Version of the files of a workspace, stored in its iterations.yaml. It grows by one with each step of
# maintenance/migrate.py, and whenever tables get columns.
FORMAT = 10
_FORMAT_LINE = re.compile(r"^format: (\d+)$", re.MULTILINE)


def iteration_label(iteration: int) -> str:
    """Format the number of an iteration for paths, tags and stage names, with three digits or more: `7` -> `007`."""
    return f"{iteration:03d}"


@dataclass(frozen=True)
class Workspace:
    """Hold the folder of a workspace (`root`, absolute), and return the paths of its files.

    In it lie `params` (params.yaml), `data` (the datasets), `report` (a folder) with `report_page`, and `state`
    (`.flywheel`, which is never part of a dataset) with `prefect_home`.
    """

    root: Path

    @classmethod
    def find(cls, folder: Path | str | None = None, *, any_format: bool = False) -> Workspace:
        """Find the workspace in `folder` (default: the current one); folders above it are not searched.

        any_format: accept files of another version. Raises BadInput where there is no workspace, or it is of another
        version, OSError where its version cannot be read.
        """
        root = Path(folder or Path.cwd()).resolve()
        if not (root / "params.yaml").is_file() or not (root / "dvc.yaml").is_file():
            raise BadInput(
                "not a flywheel workspace", where=root, fix="go into one, or make one with `flywheel init DIR`"
            )
        ws = cls(root)
        if not any_format and (found := ws.read_format()) != FORMAT:
            earlier = found < FORMAT
            raise BadInput(
                f"the workspace is of {'an earlier' if earlier else 'a later'} version of flywheel",
                where=root,
                fix="`flywheel workspace migrate` brings it up to date" if earlier else "update flywheel",
            )
        return ws

    def read_format(self) -> int:
        """Read the version of the workspace's files, from 1 on, out of iterations.yaml.

        A workspace without that file has FORMAT, this program's version. Raises OSError where it cannot be read.
        """
        try:
            found = _FORMAT_LINE.search(self.iterations_index.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return FORMAT
        return int(found[1]) if found else 1

    @property
    def iterations_index(self) -> Path:
        """Return the path of the file that names the newest iteration and the version of the files."""
        return self.root / "iterations.yaml"

    @property
    def params(self) -> Path:
        """Return the path of params.yaml, the parameters of new iterations."""
        return self.root / "params.yaml"

    def iteration(self, iteration: int) -> Path:
        """Return the folder of `iteration`: its parameters, records and DVC files."""
        return self.root / "iterations" / iteration_label(iteration)

    def list_iteration_folders(self) -> list[int]:
        """List the numbers of the iterations that have a folder, begun or left over, oldest first."""
        folders = (self.root / "iterations").glob("[0-9]*")
        return sorted(int(path.name) for path in folders if path.name.isdigit())

    def frozen_params(self, iteration: int) -> Path:
        """Return the path of the iteration's own copy of its parameters: later edits of params.yaml do not reach it."""
        return self.iteration(iteration) / "params.yaml"

    def manifest(self, iteration: int) -> Path:
        """Return the path of the manifest: the files, with hashes, that the iteration's training may read."""
        return self.iteration(iteration) / "manifest.json"

    def promotion(self, iteration: int) -> Path:
        """Return the path of the file that names the newest model, the promoted one, after this iteration."""
        return self.iteration(iteration) / "promotion.json"

    def held_out(self, iteration: int) -> Path:
        """Return the path of the file with the outcomes of this iteration's models on the held-out tasks."""
        return self.iteration(iteration) / "held_out.json"

    def checkup(self, iteration: int) -> Path:
        """Return the path of the file with the check-up, on fresh tasks, of the model that this iteration made."""
        return self.iteration(iteration) / "checkup.json"

    def levels(self, iteration: int) -> Path:
        """Return the path of the file with the levels that are open to the next iteration's training tasks."""
        return self.iteration(iteration) / "levels.json"

    @property
    def data(self) -> Path:
        """Return the folder of all tables."""
        return self.root / "data"

    def partition(self, table: str, iteration: int, stage: str) -> Path:
        """Return the folder, which may not exist, of one table's Parquet files that a stage of an iteration wrote."""
        return self.data / table / f"iteration={iteration_label(iteration)}" / f"stage={stage}"

    def model(self, iteration: int, name: str) -> Path:
        """Return the folder of a model of `iteration`. name: ct, sft, rl-<domain> or merged."""
        return self.root / "models" / f"iteration={iteration_label(iteration)}" / name

    @property
    def state(self) -> Path:
        """Return the folder of files that only this machine needs; neither git nor DVC has them."""
        return self.root / ".flywheel"

    def staging(self, iteration: int, stage: str) -> Path:
        """Return the folder with the finished shards of a stage that is not complete: a killed run resumes from it."""
        return self.state / "staging" / f"iteration={iteration_label(iteration)}" / stage

    @property
    def prefect_home(self) -> Path:
        """Return the folder of Prefect's own files."""
        return self.state / "prefect"

    @property
    def run_target(self) -> Path:
        """Return the path of the file that says how far a run is to go; it is there until the run has done so."""
        return self.state / "run.json"

    def closing(self, iteration: int) -> Path:
        """Return the path of the mark of an iteration whose report, tag and push may still be to do.

        It exists from the start of the iteration's last stage, `runs`, until all three are done.
        """
        return self.state / "closing" / iteration_label(iteration)

    def run_history(self, iteration: int) -> Path:
        """Return the path of the JSON file with Prefect's runs of `iteration`, which the stage `runs` makes a table."""
        return self.state / "runs" / f"{iteration_label(iteration)}.json"

    @property
    def report(self) -> Path:
        """Return the folder of the report."""
        return self.root / "report"

    @property
    def report_page(self) -> Path:
        """Return the path of the report's first page."""
        return self.report / "index.html"

    def relative(self, path: Path) -> str:
        """Return a path as it is written into datasets: relative to the workspace, with forward slashes.

        A link of DVC's counts by its own path, not by where it leads. Raises ValueError for a path outside the
        workspace.
        """
        named = Path(os.path.abspath(path))  # noqa: PTH100 - `resolve` would follow the link
        return (named if named.is_relative_to(self.root) else path.resolve()).relative_to(self.root).as_posix()

    def resolve(self, path: str) -> Path:
        """Return the path that a dataset or a setting names; a relative one counts from the workspace."""
        return self.root / path


def workspace_name(ws: Workspace) -> str:
    """Return the workspace's name, such as `night-3fa9c1`: its folder's name and six hex digits.

    It is made at the first call, and again where the folder was moved or copied or the file is damaged; it is stored in
    `.flywheel/identity.json`. Raises as `write_json`.
    """
    path, root = ws.state / "identity.json", str(ws.root.resolve())
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if known["root"] == root:
            return known["name"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    name = f"{folder_slug(ws.root)}-{secrets.token_hex(3)}"
    write_json(path, {"name": name, "root": root})
    return name


def folder_slug(folder: Path) -> str:
    """Return the name of `folder` in small letters, digits and hyphens, 40 at most; `workspace` if none is left."""
    return (re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-") or "workspace")[:40]


def iteration_run_id(ws: Workspace, iteration: int) -> str:
    """Return the id of the attempt that makes this iteration here, such as `003-9c41d2`; resuming does not change it.

    The id is made at the first call and stored under `.flywheel`. Raises DataError where its file is no JSON, and as
    `write_json`.
    """
    path = _iteration_run_path(ws, iteration)
    if not path.is_file():
        renew_iteration_run_id(ws, iteration)
    try:
        return f"{iteration_label(iteration)}-{json.loads(path.read_text(encoding='utf-8'))}"
    except ValueError:
        raise DataError("the iteration's id cannot be read", where=path, fix="remove that file") from None


def renew_iteration_run_id(ws: Workspace, iteration: int) -> None:
    """Store a new id for an iteration that begins: what was made under its number before is of another attempt.

    Raises as `write_json`.
    """
    write_json(_iteration_run_path(ws, iteration), secrets.token_hex(3))


def _iteration_run_path(ws: Workspace, iteration: int) -> Path:
    return ws.state / "turns" / f"{iteration_label(iteration)}.json"
