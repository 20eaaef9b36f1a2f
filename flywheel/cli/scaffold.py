"""Create a workspace from a profile, and remove what runs made in it."""

from __future__ import annotations

import shutil
from pathlib import Path

from flywheel import config
from flywheel.config import workspace_identity
from flywheel.config.workspace import Workspace
from flywheel.store.versioning import git_tags, stage_records
from flywheel.utils.errors import BadInput, errors_of_place

PROJECT_ROOT = Path(__file__).resolve().parent.parent.parent

# Settings that differ from the defaults, by profile. The long ones take more recordings than are shipped;
# `flywheel init` says how they are made.
PROFILES: dict[str, dict] = {
    "laptop": {},
    # A turn of about two minutes: to try a change, and for continuous integration.
    "small": {
        "iterations": 1,
        "recording.sessions_per_iteration": 2,
        "synthesis.train_tasks": 10,
        "synthesis.eval_tasks": 10,
        "synthesis.num_grounding_examples": 200,
        "rollout.n_rollouts": 2,
        "rollout.tasks_per_shard": 4,
        "ct.num_examples": 200,
        "sft.num_examples": 200,
        "rl.steps": 1,
        "rl.group_size": 2,
        "rl.value_pretraining_steps": 2,
        "promotion.margin": 0.2,
        "promotion.tasks": 40,
    },
    # An hour on two cores: the default's tasks, six times, each with twice the recordings and the training.
    "evening": {
        "iterations": 6,
        "recording.sessions_per_iteration": 144,
        "synthesis.num_grounding_examples": 2000,
        "synthesis.train_tasks": 60,
        "ct.num_examples": 4000,
    },
    # Two to three hours on two cores: all games and sites, whose levels open with success.
    "overnight": {
        "iterations": 6,
        "recording.sessions_per_iteration": 200,
        "synthesis.domains": {
            "games": [
                "tiles", "shapes", "merge", "double", "gems", "hexes", "lasers", "loops", "maze", "pour", "power",
                "slide", "snake", "untangle", "wood",
            ],
            "sites": ["shop", "settings", "mail", "board", "calendar", "encyclopaedia", "files", "forum"],
            "control": ["control"],
        },
        "synthesis.held_out": 0.2,
        "synthesis.levels": [1, 2, 3],
        "synthesis.level_unlock_success": 0.5,
        "synthesis.train_tasks": 120,
        "synthesis.eval_tasks": 96,
        "synthesis.num_grounding_examples": 2000,
        "ct.num_examples": 6000,
        "ct.freeze_vision": False,
        "sft.num_examples": 1600,
        "rl.tasks_per_step": 6,
        "evaluation.stages": True,
        "promotion.tasks": 160,
    },
    # Half an hour on two cores: chores in a shell, by functions alone: fifteen families about files, of short answers.
    # `flywheel init` says how the demonstrations are made that it learns from.
    "computer": {
        "iterations": 2,
        "policy.functions": True,
        "policy.max_new_tokens": 112,
        "recording.sessions_per_iteration": 0,
        "recording.imports_per_iteration": 750,
        "sandbox.kinds": {"terminal": {"places": 4}},
        "synthesis.domains": {"computer": ["chores"]},
        "synthesis.held_out": [],
        "synthesis.excluded_templates": [
            f"chores/{family}"
            for family in (
                "same", "pack", "clean", "filter", "total", "json", "joined", "setting", "visitors", "slow", "mend",
                "implement", "serve", "end", "change", "query", "lookup", "note", "ledger",
            )
        ],
        "synthesis.levels": [1],
        "synthesis.num_grounding_examples": 0,
        "synthesis.eval_tasks": 60,
        "ct.agent_fraction": 1.0,
        "rollout.n_rollouts": 2,
        "ct.num_examples": 5600,
        "ct.lr": 0.001,
        "sft.agent_fraction": 1.0,
        "evaluation.stages": True,
        "merge.weights": {"computer": 1.0},
    },
}  # fmt: skip
_GITIGNORE = "/.flywheel/\n/data/\n/episodes/\n/models/iteration=*/\n/report/\n*.duckdb\n"


def create_workspace(folder: Path, profile: str = "laptop", *, project: Path = PROJECT_ROOT) -> Workspace:
    """Make a workspace. Raises BadInput for an unknown profile, or a folder that holds something."""
    if profile not in PROFILES:
        raise BadInput(f"no profile {profile}", where="--profile", fix=f"one of: {', '.join(PROFILES)}")
    base, recordings = project / "models" / "base", project / "recordings"
    for needed in (base, recordings, project / "params.yaml", project / "prefect.yaml"):
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
    overrides = {**PROFILES[profile], "versioning.git": True}
    chosen = config.load_settings(project / "params.yaml", overrides)
    (folder / "params.yaml").write_text(config.dump_commented_settings(chosen), encoding="utf-8")
    (folder / ".gitignore").write_text(_GITIGNORE, encoding="utf-8")
    (folder / "prefect.yaml").write_text(_prefect_yaml(project, folder.resolve()), encoding="utf-8")
    shutil.copytree(base, folder / "models" / "base")
    shutil.copytree(recordings, folder / "recordings", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    ws = Workspace(folder.resolve())
    git_tags.init_git(ws.root)
    stage_records.init_dvc_project(ws)
    git_tags.commit_to_git(ws.root, "DVC", ("--all", "."))
    return ws


def _prefect_yaml(project: Path, folder: Path) -> str:
    """The text of prefect.yaml. Workspaces may share a server, so each has deployments of its own name."""
    text, own = (project / "prefect.yaml").read_text(encoding="utf-8"), workspace_identity.folder_slug(folder)
    return text.replace("- name: ", f"- name: {own}-").replace("--name ", f"--name {own}-")


def list_missing_data(ws: Workspace) -> list[str]:
    """What its iterations take and is not there yet, each with the command that makes it."""
    from flywheel.recordings.synthetic import (
        demonstrations,
        sessions,  # they load the environments
    )

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
    said += [
        f"its iterations take up to {wanted} demonstrations of {world}; make them before the run, three a second:\n"
        "python -m flywheel.recordings.synthetic.demonstrations recordings --params params.yaml "
        f"--world {world} --count {wanted}"
        for worlds in chosen.synthesis.domains.values()
        for world in worlds
        if world in demonstrations.WORLDS
    ]
    return said


def list_run_outputs(ws: Workspace) -> list[Path]:
    """What runs have written in a workspace; the base model, recordings and settings are not among it."""
    names = ("data", "report", ".flywheel", "dvc.lock", "iterations.yaml", "iterations", ".dvc/cache", ".dvc/tmp")
    found = [ws.root / name for name in names if (ws.root / name).exists()]
    return [*found, *sorted((ws.root / "models").glob("iteration=*"))]


def remove_paths(paths: list[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
