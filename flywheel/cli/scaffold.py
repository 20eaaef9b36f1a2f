"""Create a workspace from a profile (`flywheel init`), and list the data that it lacks and the outputs of its runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from flywheel import config
from flywheel.config.workspace import Workspace, folder_slug
from flywheel.store.versioning import git_tags, stage_records
from flywheel.utils import yaml_text
from flywheel.utils.errors import BadInput, errors_of_place
from flywheel.utils.files import disk_full_errors

PROJECT_ROOT = Path(__file__).resolve().parent.parent.parent
_GITIGNORE = "/.flywheel/\n/annotations/\n/data/\n/episodes/\n/models/iteration=*/\n/report/\n*.duckdb\n"


def load_profile(name: str, *, project: Path = PROJECT_ROOT) -> dict[str, Any]:
    """Read the parameters, by dotted name, in which a profile differs from params.yaml.

    name: of a file `configs/NAME.yaml` in the source folder `project`. Returns {} where `project` has no profiles.
    Raises BadInput for another name.
    """
    known = sorted(path.stem for path in (project / "configs").glob("*.yaml"))
    if known and name not in known:
        raise BadInput(f"no profile {name}", where="--profile", fix=f"one of: {', '.join(known)}")
    path = project / "configs" / f"{name}.yaml"
    return yaml_text.parse_yaml(path.read_text(encoding="utf-8")) if known else {}


def create_workspace(folder: Path, profile: str = "laptop", *, project: Path = PROJECT_ROOT) -> Workspace:
    """Create a workspace in `folder`, with git and DVC: settings, base model and recordings are copied from the source.

    folder: must be empty, and is made where it is missing. profile: of `configs`. project: the source folder. Raises
    BadInput for an unknown profile, a folder that is not empty or cannot be made, and where the source lacks a part;
    FlywheelError where git is missing or fails; DiskFull.
    """
    overrides = {**load_profile(profile, project=project), "versioning.git": True}
    base, recordings = project / "models" / "base", project / "recordings"
    for needed in (base, recordings, project / "configs", project / "params.yaml", project / "prefect.yaml"):
        if not needed.exists():
            raise BadInput(
                "the base model, the recordings and prefect.yaml come with the source",
                where=needed,
                fix="install from a clone: pip install -e .",
            )
    with errors_of_place(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadInput("the folder is not empty", where=folder, fix="name a new one")
    chosen = config.load_settings(project / "params.yaml", overrides)
    with disk_full_errors(folder):
        (folder / "params.yaml").write_text(config.dump_commented_settings(chosen), encoding="utf-8")
        (folder / ".gitignore").write_text(_GITIGNORE, encoding="utf-8")
        (folder / ".gitattributes").write_text(git_tags.GITATTRIBUTES, encoding="utf-8")
        # Workspaces may share a server, so each has deployments of its own name.
        text, own = (project / "prefect.yaml").read_text(encoding="utf-8"), folder_slug(folder.resolve())
        text = text.replace("- name: ", f"- name: {own}-").replace("--name ", f"--name {own}-")
        (folder / "prefect.yaml").write_text(text, encoding="utf-8")
        shutil.copytree(base, folder / "models" / "base")
        shutil.copytree(recordings, folder / "recordings", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        ws = Workspace(folder.resolve())
        git_tags.init_git(ws.root)
        stage_records.init_dvc_project(ws)
        git_tags.commit_to_git(ws.root, "DVC", ("--all", "."))
    return ws


def list_missing_data(ws: Workspace) -> list[str]:
    """List the recordings and demonstrations that a new workspace still needs, as texts with the commands to make them.

    A text has two lines: what is needed, and the command. Raises BadInput where params.yaml is wrong or its tasks
    cannot be drawn, DataError as `sessions_match_settings`.
    """
    from flywheel.recordings.synthetic import demonstrations, sessions  # they load the environments

    chosen, said = config.load_settings(ws.params), []
    there = sum(1 for path in ws.resolve(chosen.recording.folder).iterdir() if path.is_dir())
    if there < (wanted := chosen.iterations * chosen.recording.sessions_per_iteration):
        fits = sessions.sessions_match_settings(ws.resolve(chosen.recording.folder), chosen)
        which = f"{there} are there; make the others" if fits else f"the {there} shipped are of other tasks; make them"
        said += [
            f"its iterations take up to {wanted} recordings, and {which} before the run, one a second:\n"
            "python -m flywheel.recordings.synthetic.sessions recordings --params params.yaml "
            f"{f'--first {there} ' * fits}--count {wanted}"
        ]
    wanted = chosen.iterations * chosen.recording.imports_per_iteration
    worlds = [world for names in chosen.synthesis.domains.values() for world in names]
    for world in (world for world in worlds if world in demonstrations.WORLDS):
        folders = demonstrations.list_demonstration_folders(world, chosen, wanted)
        there = sum((ws.resolve(chosen.recording.folder) / folder).is_dir() for folder in folders)
        if there < len(folders):
            which = f", and {there} are there; make the others" if there else "; make them"
            said += [
                f"its iterations take up to {wanted} demonstrations of {world}{which} before the run, three a second:\n"
                "python -m flywheel.recordings.synthetic.demonstrations recordings --params params.yaml "
                f"--world {world} --count {wanted}"
            ]
    return said


def list_run_outputs(ws: Workspace) -> list[Path]:
    """List the existing paths that runs have written in a workspace: not its base model, recordings and settings."""
    names = ("data", "report", ".flywheel", "dvc.lock", "iterations.yaml", "iterations", ".dvc/cache", ".dvc/tmp")
    found = [ws.root / name for name in names if (ws.root / name).exists()]
    return [*found, *sorted((ws.root / "models").glob("iteration=*"))]
