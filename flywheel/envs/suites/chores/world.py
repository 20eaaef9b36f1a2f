"""Define the suites `chores`, for a shell, and `errands`, for a shell with a screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from flywheel.envs.suites.chores import (
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
from flywheel.envs.suites.chores.family import ChoreFamily, ChoreFamilySuite


class ChoresSuite(ChoreFamilySuite):
    environment: ClassVar[str] = "terminal"
    families: ClassVar[Mapping[str, ChoreFamily]] = {
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


class ErrandsSuite(ChoreFamilySuite):
    environment: ClassVar[str] = "computer"
    families: ClassVar[Mapping[str, ChoreFamily]] = {**web.FAMILIES, **applications.FAMILIES}


CHORES, ERRANDS = ChoresSuite.make_suite("chores"), ErrandsSuite.make_suite("errands")
