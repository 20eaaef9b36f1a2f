"""What else is served of the workspace, and git's names of its iterations: where the explorer's pages link to."""

from __future__ import annotations

from dataclasses import dataclass

from flywheel.store import git
from flywheel.workspace import Workspace

_DOCS = "docs/index.html"  # within the report's folder


@dataclass
class Beside:
    """Addresses of the servers beside the explorer; empty where there is none, or none yet."""

    prefect: str = ""
    report: str = ""

    def docs(self, ws: Workspace) -> str:
        """The address of the Data Docs; empty where none are served, or none were written."""
        return f"{self.report}/{_DOCS}" if self.report and (ws.report / _DOCS).is_file() else ""


def revisions(ws: Workspace) -> list[dict[str, str]]:
    """git's tag of each iteration that has one, and the commit it names. Raises FlywheelError."""
    return [{"tag": tag, "commit": commit} for tag, commit in git.tags(ws)]
