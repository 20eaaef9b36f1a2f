"""Commit and tag each iteration in the workspace's own git repository.

`git checkout iteration-007 && dvc checkout` gives that iteration's data, models and parameters.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.utils.errors import DataError, FlywheelError

# Files that git tracks; DVC has all others.
_TRACKED = (
    *("params.yaml", "prefect.yaml", "dvc.yaml", "dvc.lock", "iterations.yaml"),
    *("iterations", "reviews", "queries", ".dvc/config", ".gitattributes"),
)
GITATTRIBUTES = "# These files are recorded by their bytes: Git changes no line ends\n* -text\n"
_DEADLINE_S = 600  # long enough for a workspace on a slow disk


def init_git(root: Path) -> None:
    """Make the folder `root` a git repository with the branch `main`, and commit its content.

    Raises FlywheelError where git is not installed, refuses, or does not answer within ten minutes.
    """
    _git(root, "init", "--quiet", "--initial-branch=main")
    commit_to_git(root, "A flywheel workspace", ("--all",))


def tag_iteration(ws: Workspace, iteration: int) -> None:
    """Commit the workspace's files that git keeps and tag the commit `iteration-NNN`; an existing tag is moved.

    Without a change, the newest commit is tagged. Raises FlywheelError as `init_git`.
    """
    name = f"iteration-{iteration_label(iteration)}"
    commit_workspace(ws, f"Iteration {iteration_label(iteration)}")
    _git(ws.root, "tag", "--force", name)


def commit_workspace(ws: Workspace, message: str) -> None:
    """Commit the workspace's files that git keeps, and not DVC, if they have changed. message: of the commit.

    These are params.yaml, iterations, reviews and others, with new and deleted ones. Files that were already staged are
    committed too. Raises FlywheelError as `init_git`.
    """
    commit_to_git(ws.root, message, tuple(path for path in _TRACKED if (ws.root / path).exists()))


def is_iteration_tagged(ws: Workspace, iteration: int) -> bool:
    """Tell whether the iteration has its tag; False where there is no git. Raises what `iteration_tags` does."""
    return f"iteration-{iteration_label(iteration)}" in dict(iteration_tags(ws))


def iteration_tags(ws: Workspace) -> list[tuple[str, str]]:
    """Return (tag, full commit id) of each tag `iteration-NNN`, by name.

    Empty where the workspace is no repository of its own, or git is not installed. Raises FlywheelError where git
    refuses or does not answer.
    """
    if not (ws.root / ".git").exists() or not shutil.which("git"):
        return []
    lines = _git(ws.root, "for-each-ref", "refs/tags/iteration-*", "--format=%(refname:short) %(objectname)")
    return [tuple(line.split(" ", 1)) for line in lines.splitlines()]


def check_line_ends(root: Path) -> None:
    """Check that Git changed no line ends of iterations' files, as `core.autocrlf` does in a clone.

    root: the workspace; without git the check passes. Raises DataError with the commands that restore them,
    FlywheelError as `init_git`.
    """
    if not (root / ".git").exists() or not shutil.which("git"):
        return
    about = [line.split("\t") for line in _git(root, "ls-files", "--eol", "--", "iterations").splitlines()]
    changed = [path for ends, path in about if ends.split()[:2] in (["i/lf", "w/crlf"], ["i/lf", "w/mixed"])]
    if changed:
        raise DataError(
            f"{len(changed)} files have other line ends than were recorded, {changed[0]} first: Git changed them "
            "(core.autocrlf)",
            where=root,
            fix="commit your own changes, then type "
            "`git config core.autocrlf false && git rm -rq --cached . && git reset -q --hard` there",
        )


def is_tracked_by_git(root: Path, path: str) -> bool:
    """Tell whether the newest commit contains the file `path`, relative to the folder `root`; False without git.

    Raises FlywheelError where git does not answer.
    """
    if not shutil.which("git"):
        return False
    return _run_git(root, "cat-file", "-e", f"HEAD:./{path}").returncode == 0


def commit_to_git(root: Path, message: str, paths: tuple[str, ...]) -> None:
    """Commit `paths` in the repository at `root` if they have changed.

    message: of the commit. paths: relative to `root`, or options of `git add` (`--all`). Files that were already staged
    are committed too. Where git knows no author, it is `flywheel`. Raises FlywheelError as `init_git`.
    """
    _git(root, "add", *paths)
    if _git(root, "diff", "--cached", "--name-only"):
        _git(root, "commit", "--quiet", "-m", message)


def _git(root: Path, *arguments: str) -> str:
    if not shutil.which("git"):
        raise FlywheelError("git is not installed", where=root, fix="install it, or set versioning.git to false")
    known = _run_git(root, "config", "user.email").returncode == 0
    identity = () if known else ("-c", "user.name=flywheel", "-c", "user.email=flywheel@localhost")
    done = _run_git(root, *identity, *arguments)
    if done.returncode:
        raise FlywheelError(f"git {arguments[0]} failed: {done.stderr.strip()}", where=root, fix="see `git status`")
    return done.stdout.strip()


def _run_git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise FlywheelError(
            f"git did not answer in {_DEADLINE_S:g} s ({' '.join(arguments)})",
            where=root,
            fix="see whether its disk answers; delete .git/index.lock there, if git has left it",
        ) from None
