"""The worlds of all families: `chores` for whoever has a shell, `errands` for whoever has a screen beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from flywheel.computer.chores import (
    applications,
    archives,
    code,
    configuration,
    databases,
    logs,
    moving,
    services,
    tables,
    texts,
    tools,
    web,
)
from flywheel.computer.chores.family import Family, FamilyWorld


class ChoresWorld(FamilyWorld):
    environment: ClassVar[str] = "terminal"
    families: ClassVar[Mapping[str, Family]] = {
        **moving.FAMILIES,
        **archives.FAMILIES,
        **texts.FAMILIES,
        **tables.FAMILIES,
        **configuration.FAMILIES,
        **logs.FAMILIES,
        **code.FAMILIES,
        **services.FAMILIES,
        **databases.FAMILIES,
        **tools.FAMILIES,
    }


class ErrandsWorld(FamilyWorld):
    environment: ClassVar[str] = "computer"
    families: ClassVar[Mapping[str, Family]] = {**web.FAMILIES, **applications.FAMILIES}


CHORES, ERRANDS = ChoresWorld.made("chores"), ErrandsWorld.made("errands")
