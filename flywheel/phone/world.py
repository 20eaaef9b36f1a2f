"""The world `phone`: tasks over the applications of the emulated phone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from flywheel.environments.world import Template
from flywheel.phone import parts
from flywheel.phone.apps import APPS
from flywheel.phone.families import FAMILIES
from flywheel.phone.launcher import HOME
from flywheel.worlds import catalogue
from flywheel.worlds.site import Site

VERIFIER = "phone:score"
_NOTHING = {"parts": [], "removed": [], "opened": None, "home": False}
_FOLDER = Path(__file__).parent
_SOURCES = {".py", ".html"}


class PhoneWorld(catalogue.World):
    """A site's world as far as its own pages go, which are the home screen."""

    environment: ClassVar[str] = "phone"

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """The params of one seed: what `parts.score` reads, and the seed of all records that the task is not about.

        Raises BadInput for a template or a level that the world has not.
        """
        self.budget(template, level)
        rng = random.Random(f"{self.name} {template} {level} {seed}")
        return {**_NOTHING, "seed": rng.randrange(2**31), **FAMILIES[template].draw(level, rng)}

    @property
    def play(self) -> Site:
        return HOME

    def verifier(self, name: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], float] | None:
        return parts.score if name == VERIFIER else None

    def score(self, params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
        return parts.score(params, state)

    def seed_of(self, params: Mapping[str, Any], site: str) -> int:
        return parts.seed_of(params, site)


def _checksum() -> str:
    """Of this folder's files and of the applications': a task is what they show and draw."""
    digest = hashlib.sha256()
    for path in sorted(_FOLDER.rglob("*")):
        if path.suffix in _SOURCES:
            digest.update(path.relative_to(_FOLDER).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    for site in APPS:
        digest.update(catalogue.get(site).checksum.encode())
    return digest.hexdigest()


PHONE = PhoneWorld(
    name="phone",
    domain="phone",
    title="Phone",
    kind="site",
    version=1,
    folder=HOME.folder,
    templates={
        name: Template(instruction="{instruction}", verifier=VERIFIER, max_steps=dict(family.budgets))
        for name, family in FAMILIES.items()
    },
    checksum=_checksum(),
)
