"""Compare the code of a worker with the code that a deployment was made with, before a run does anything.

The version of the code is the deployment's version in Prefect, so that its pages show it. Deployments with a version of
another form are not checked, such as those of `flywheel workspace up`, whose worker runs the files that made them.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import metadata
from pathlib import Path

from prefect.runtime import deployment

from flywheel.utils.errors import BadInput

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("flows", "tasks", "flywheel")
_KINDS = {".py", ".sql", ".js", ".css", ".html", ".json", ".yaml"}  # what an installed package has of the source
_OURS = re.compile(r"\S+\+[0-9a-f]{12}")


@cache
def compute_code_version() -> str:
    """Compute the version of the code, such as `0.1.0+3fa9c1d04b7e`.

    It is the release, and the first 12 hexadecimal digits of a hash of the source that this process would run now.
    """
    found = (path for package in _PACKAGES for path in (_ROOT / package).rglob("*") if path.suffix in _KINDS)
    digest = hashlib.sha256()
    for path in sorted(found):
        digest.update(
            f"{path.relative_to(_ROOT).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return f"{metadata.version('flywheel')}+{digest.hexdigest()[:12]}"


def code_version_build_step() -> dict[str, str]:
    """Return `version`, the version of the code, as a build step of prefect.yaml, which gives it to deployments."""
    return {"version": compute_code_version()}


def check_code_version(made_with: str | None, by: str = "") -> None:
    """Check that this process has the same code as its deployment, or as an iteration that requests a stage.

    made_with: version of that code, of `compute_code_version`; None or a text of another form is not checked. by: whose
    code it is, in words; "": that of the current run's deployment. Raises BadInput where this process has other code.
    """
    if made_with and _OURS.fullmatch(made_with) and made_with != compute_code_version():
        own = compute_code_version()
        raise BadInput(
            f"this worker has other code, flywheel {own}, than {by or 'the deployment'}, {made_with}",
            where=str(_ROOT) if by else f"deployment {deployment.name}",
            fix="give the worker the same code"
            if by
            else "give the worker the same code, or type `prefect deploy` again",
        )
