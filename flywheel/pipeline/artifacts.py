"""Declare what passes from stage to stage: partitions of tables, checkpoints, small records.

A stage declares which of these it reads and writes (`pipeline/stage.py`). A name may hold `{domain}`: there is one for
each domain of the iteration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flywheel.config.workspace import Workspace
from flywheel.policy import checkpoint
from flywheel.store.partitions import partition_manifest
from flywheel.utils.files import sha256_file

DOMAIN_PLACEHOLDER = "{domain}"


@dataclass(frozen=True)
class Partition:
    """Name the rows of a table that one stage wrote in this iteration."""

    table: str
    stage: str

    def path(self, ws: Workspace, iteration: int) -> Path:
        """Return the partition's folder in `iteration`."""
        return ws.partition(self.table, iteration, self.stage)

    def fingerprint(self, ws: Workspace, iteration: int) -> Any:
        """Return the sha256 of each of its files in `iteration`."""
        return [part.sha256 for part in partition_manifest(ws, self.table, iteration, self.stage).parts]


@dataclass(frozen=True)
class Checkpoint:
    """Name a model of this iteration: its folder is named as the stage that made it, or as what it is."""

    name: str

    def path(self, ws: Workspace, iteration: int) -> Path:
        """Return the checkpoint's folder in `iteration`."""
        return ws.model(iteration, self.name)

    def fingerprint(self, ws: Workspace, iteration: int) -> Any:
        """Return the digest of its weights in `iteration`."""
        return checkpoint.checkpoint_digest(self.path(ws, iteration))


@dataclass(frozen=True)
class Record:
    """Name a small JSON file of an iteration, which git keeps. previous: that of the iteration before.

    What a record names by hash (the files of a manifest, the model of a promotion) is read with it.
    """

    name: str
    previous: bool = False

    def path(self, ws: Workspace, iteration: int) -> Path:
        """Return the file's path. iteration: of the record itself."""
        return ws.iteration(iteration) / f"{self.name}.json"

    def fingerprint(self, ws: Workspace, iteration: int) -> Any:
        """Return the sha256 of the file; "" where it is not there (iterations of earlier versions have no `decisions`).

        iteration: the one that reads it.
        """
        path = self.path(ws, iteration - 1 if self.previous else iteration)
        return sha256_file(path) if path.exists() else ""


Artifact = Partition | Checkpoint | Record


def is_per_domain(artifact: Artifact) -> bool:
    """Tell whether there is one for each domain."""
    return DOMAIN_PLACEHOLDER in (artifact.stage if isinstance(artifact, Partition) else artifact.name)


def expand_domains(artifact: Artifact, domains: Iterable[str]) -> list[Artifact]:
    """List the artifact of each domain where there is one for each, else itself."""
    if not is_per_domain(artifact):
        return [artifact]
    field = "stage" if isinstance(artifact, Partition) else "name"
    return [
        replace(artifact, **{field: getattr(artifact, field).replace(DOMAIN_PLACEHOLDER, domain)}) for domain in domains
    ]
