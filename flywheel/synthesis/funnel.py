"""Store what each stage of making tasks took, kept and discarded, by reason: `funnel.json` beside the manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flywheel.config import Settings
from flywheel.envs.browser.pages.manifest import FUNNEL_FILE
from flywheel.utils.errors import DataError
from flywheel.utils.files import write_json
from flywheel.utils.json_text import describe_first_fault, parse_foreign_json

Count = Annotated[int, Field(ge=0)]
Words = Annotated[str, Field(min_length=1, max_length=200)]


class FunnelStage(BaseModel):
    """Hold the counts of one stage of making tasks. taken: what it got. left: what it left for the next stage.
    discarded: reason -> count.

    `left` may be more than was taken, where the stage makes several of one. Raises ValueError where `left` and
    `discarded` together are fewer than `taken`: something would be lost without a reason.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Words
    taken: Count
    left: Count
    discarded: dict[Words, Count] = {}

    @model_validator(mode="after")
    def _nothing_lost(self) -> FunnelStage:
        told = self.left + sum(self.discarded.values())
        if told < self.taken:
            raise ValueError(f"{self.name} took {self.taken} and tells of {told}: give the others a reason")
        return self


class Funnel(BaseModel):
    """Hold the counts of one making of tasks, stage by stage.

    source: of the tasks, such as questions. made_from: the folder, site or address that they were made of. seed: of the
    making.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: Words
    made_from: Annotated[str, Field(max_length=1000)]
    seed: int
    stages: Annotated[tuple[FunnelStage, ...], Field(min_length=1)]


def write_funnel(folder: Path, funnel: Funnel) -> None:
    """Write `funnel` into the folder of the manifests that were made, whole or not at all. Raises DiskFull."""
    write_json(folder / FUNNEL_FILE, funnel.model_dump(mode="json"))


def read_funnel(folder: Path) -> Funnel | None:
    """Read the funnel of made tasks, the counts kept and discarded by each stage of making them.

    folder: of the manifests that were made. None where it has none. Raises DataError where it is damaged or cannot be
    read.
    """
    path = folder / FUNNEL_FILE
    try:
        return Funnel.model_validate(parse_foreign_json(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        what = describe_first_fault(error) if isinstance(error, ValidationError) else error
        raise DataError(f"not a funnel: {what}", where=path, fix="make the tasks again, or remove it") from None


def list_funnel_folders(settings: Settings, root: Path) -> list[Path]:
    """List the folders with a funnel (`read_funnel`) of the settings' `synthesis.manifests` and `synthesis.worlds`.

    Each is listed once. A funnel may lie in a manifest's folder, or in the folder beside the manifest with its name.
    root: the workspace. Places that do not exist are left out.
    """
    found: list[Path] = []
    for place in (root / entry for entry in (*settings.synthesis.manifests, *settings.synthesis.worlds)):
        manifests = sorted(path for path in place.iterdir() if path.is_file()) if place.is_dir() else [place]
        found += [place if place.is_dir() else place.parent, *(path.with_suffix("") for path in manifests)]
    return [folder for folder in dict.fromkeys(found) if (folder / FUNNEL_FILE).is_file()]
