"""Implement the environment back-ends `terminal` and `computer`: suite manifests, requirement checks and pools."""

from __future__ import annotations

import base64
import hashlib
import os
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flywheel.config import DomainName, Settings
from flywheel.envs import isolation, registry
from flywheel.envs.base import Task, TaskSuite, TaskTemplate, Verifier, score_nothing
from flywheel.envs.computer import desktop
from flywheel.envs.computer.checker import Checker, CheckerLimits
from flywheel.envs.computer.computer import Computer, WarmPool
from flywheel.envs.computer.env import ComputerEnv
from flywheel.envs.computer.machine import ComputerSettings, TerminalSettings
from flywheel.envs.computer.osworld import suite as osworld
from flywheel.envs.computer.osworld.suite import OsworldFiles, OsworldSuite
from flywheel.envs.computer.task_spec import ComputerTaskSpec
from flywheel.envs.registry import EnvLimits, EnvPool, parse_backend_settings
from flywheel.envs.suites.chores import verifier
from flywheel.envs.suites.chores.verifier import CHORES_VERIFIER
from flywheel.envs.suites.chores.world import CHORES, ERRANDS
from flywheel.envs.suites.desk.world import DESK, DESK_VERIFIERS
from flywheel.utils.errors import BadInput, EnvError, Finding, did_you_mean, run_diagnostic

# Task suites that a user declares in a manifest: docs/computer.md#suites-of-your-own.

WORLD_NAME = r"^[a-z][a-z0-9_]{0,63}$"  # the form of a suite's name
_MAX_FOLDER_BYTES = 2**22  # bytes of a task's folder, or of a checker's files


class CheckerProgram(CheckerLimits):
    """Hold a manifest's checker: the program that judges a task, and its limits.

    program: its path, relative to the manifest; run by Python where it ends in .py, else executed itself. files: paths
    of further files, which lie in the program's folder when it runs.
    """

    program: str = Field(min_length=1)
    files: list[str] = Field(default_factory=list)


class TaskEnd(BaseModel):
    """Hold what must be true at a task's end: all fields that are given, at least one besides `free`.

    wanted: path -> text of the file, None where it must be gone. answer: content of the action `finished`. served: port
    -> body of a service's response, None where no service may answer. packed: path of an archive -> its files' texts by
    path. received: the last form that the task's site got. printed: output of each command of `begin.probe`. free:
    files of the start that may be changed or deleted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    wanted: dict[str, str | None] = {}
    answer: str | None = None
    served: dict[str, str | None] = {}
    packed: dict[str, dict[str, str]] = {}
    received: dict[str, str] | None = None
    printed: list[str] = []
    free: list[str] = []
    checker: CheckerProgram | None = None

    @property
    def parts(self) -> dict[str, Any]:
        """Return the fields that have a value, without the checker, by name."""
        told = self.model_dump(exclude={"checker"})
        return {name: value for name, value in told.items() if value not in (None, {}, [])}


class ComputerTaskTemplate(BaseModel):
    """Hold a task template of a manifest.

    choose: placeholder -> texts to draw from. max_steps: step budget by level. folder: a folder beside the manifest,
    whose content the home begins with. begin: fields of `ComputerTaskSpec`. end: what judges the task.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    instruction: str = Field(min_length=1)
    choose: dict[str, Annotated[list[dict[str, str] | str], Field(min_length=1)]] = {}
    max_steps: dict[int, int] = Field(min_length=1)
    folder: str = ""
    begin: dict[str, Any] = {}
    end: TaskEnd

    @model_validator(mode="after")
    def _whole(self) -> ComputerTaskTemplate:
        try:
            given = ComputerTaskSpec.model_validate(self.begin)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"begin.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        if unknown := self.begin.keys() - ComputerTaskSpec.model_fields.keys():
            raise ValueError(f"begin has no {', '.join(sorted(unknown))}")
        if self.end.checker is None and not self.end.parts.keys() - {"free"}:
            raise ValueError("end says nothing that must hold")
        if self.end.checker is not None and self.end.free:
            raise ValueError("end.free means nothing where a checker decides: let it say which files may change")
        if unasked := self.end.served.keys() - given.ports.keys():
            raise ValueError(f"begin.ports does not say what is asked at {', '.join(sorted(unasked))}")
        if len(self.end.printed) != len(given.probe):
            raise ValueError("end.printed has a line for each command of begin.probe")
        return self


class ComputerManifest(BaseModel):
    """Hold a manifest of computer tasks: `tasks`, or in their place `osworld`, which names task files of OSWorld."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    world: str = Field(pattern=WORLD_NAME)
    domain: DomainName = "computer"
    tasks: list[ComputerTaskTemplate] = []
    osworld: OsworldFiles | None = None

    @model_validator(mode="after")
    def _either(self) -> ComputerManifest:
        if bool(self.tasks) == (self.osworld is not None):
            raise ValueError("it has tasks, or osworld")
        return self


class ManifestSuite(TaskSuite):
    """Hold a suite that a user's manifest declares.

    environment: terminal or computer. tasks, checkers: by template. folders: template -> files of its folder, base64 by
    path.
    """

    environment: str
    tasks: dict[str, ComputerTaskTemplate]
    folders: dict[str, dict[str, str]]
    checkers: dict[str, Checker]

    @property
    def judging_s(self) -> float:
        """Return the longest time, in seconds, that a checker of the suite may take; 0 without one."""
        return max((checker.seconds for checker in self.checkers.values()), default=0.0)

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """Draw the params of a task. Raises BadInput for an unknown template or level."""
        self.budget(template, level)
        task = self.tasks[template]
        values = registry.draw_placeholders(task.choose, random.Random(f"{self.name} {template} {level} {seed}"))
        made = {"files": {}, **task.begin, **task.end.parts, "instruction": task.instruction}
        if template in self.folders:
            made["binary"] = {**self.folders[template], **made.get("binary", {})}
        made = registry.fill_placeholders(made, values)
        if template in self.checkers:
            made |= {"checker": self.checkers[template].model_dump(), "values": values}
        return made


class FixedSuite(ManifestSuite):
    """Hold a manifest's suite whose tasks have nothing to draw, so that each is the same for all seeds."""

    once: ClassVar[bool] = True


def load_computer_suite(path: Path, kind: str) -> ManifestSuite | OsworldSuite:
    """Load the suite of the manifest at `path`. kind: terminal or computer. Raises BadInput where it is wrong."""
    declared = registry.validate_suite_manifest(path, ComputerManifest)
    tasks = {task.name: task for task in declared.tasks}
    if len(tasks) < len(declared.tasks):
        raise BadInput("two tasks have one name", where=path, fix="rename one")
    try:
        if declared.osworld is not None:
            return osworld.load_osworld_suite(path, declared.world, declared.domain, declared.osworld, kind)
        folders = {task.name: _load_folder(path, task.folder) for task in declared.tasks if task.folder}
        checkers = {task.name: _load_checker(path, task.end.checker) for task in declared.tasks if task.end.checker}
    except OSError as error:
        raise BadInput(f"a file that it names cannot be read: {error}", where=path, fix="mend that name") from None
    digest = hashlib.sha256(path.read_bytes() + repr(sorted(folders.items())).encode())
    for name, checker in sorted(checkers.items()):
        digest.update(repr((name, checker)).encode())
    templates = {
        task.name: TaskTemplate(instruction="{instruction}", verifier=CHORES_VERIFIER, max_steps=task.max_steps)
        for task in declared.tasks
    }
    drawn = any(task.choose for task in declared.tasks)
    return (ManifestSuite if drawn else FixedSuite)(
        environment=kind,
        name=declared.world,
        domain=declared.domain,
        templates=templates,
        checksum=digest.hexdigest(),
        tasks=tasks,
        folders=folders,
        checkers=checkers,
    )


def _load_checker(manifest: Path, said: CheckerProgram) -> Checker:
    files, left = {}, _MAX_FOLDER_BYTES
    for name in (said.program, *said.files):
        path = manifest.parent / name
        if not path.is_file() or not path.resolve().is_relative_to(manifest.parent.resolve()):
            raise BadInput(f"there is no checker's file {name} beside the manifest", where=manifest, fix="make it")
        if path.name in files:
            raise BadInput(f"two of a checker's files are called {path.name}", where=manifest, fix="rename one")
        if (left := left - path.stat().st_size) < 0:
            what = f"a checker's files have more than {_MAX_FOLDER_BYTES} bytes"
            raise BadInput(what, where=manifest, fix="leave some out")
        files[path.name] = base64.b64encode(path.read_bytes()).decode()
    program = manifest.parent / said.program
    if program.suffix != ".py" and not os.access(program, os.X_OK):
        raise BadInput(f"the checker {said.program} cannot be executed", where=manifest, fix=f"chmod +x {program}")
    chosen = said.model_dump(include=set(CheckerLimits.model_fields))
    return Checker(program=program.name, files=files, **chosen)


def _load_folder(manifest: Path, name: str) -> dict[str, str]:
    """Return the files of a folder beside the manifest, base64 by path in it; links are left out."""
    folder = manifest.parent / name
    if not folder.is_dir() or not folder.resolve().is_relative_to(manifest.parent.resolve()):
        raise BadInput(f"there is no folder {name} beside the manifest", where=manifest, fix="make it, or name another")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    if sum(path.stat().st_size for path in files) > _MAX_FOLDER_BYTES:
        what = f"the folder {name} has more than {_MAX_FOLDER_BYTES} bytes"
        raise BadInput(what, where=manifest, fix="leave some out")
    return {path.relative_to(folder).as_posix(): base64.b64encode(path.read_bytes()).decode() for path in files}


SHIPPED_COMPUTER_SUITES: dict[str, TaskSuite] = {one.name: one for one in (DESK, CHORES, ERRANDS)}
COMPUTER_VERIFIERS: dict[str, Verifier] = {
    **DESK_VERIFIERS,
    verifier.CHORES_VERIFIER: verifier.score_chore_state,
    "": score_nothing,
    osworld.OSWORLD_VERIFIER: osworld.score_osworld_state,
}


# Settings that change how long an episode takes, but not what happens in it.
_NOT_IN_IDENTITY = {"places", "timeout_s", "open_s", "warm"}
_STEP_MARGIN_S = 5.0  # that a step may take beyond its wait for a command


class ComputerPool:
    """Lend environments of computers (an `EnvPool`).

    kind: finds verifiers. warm: lends computers. limit_s: deadline of a reset or step, in seconds.
    """

    def __init__(self, kind: ComputerBackend, warm: WarmPool, limit_s: float) -> None:
        self._kind, self._warm, self._limit_s = kind, warm, limit_s

    @asynccontextmanager
    async def env(self) -> AsyncIterator[ComputerEnv]:
        """Lend an environment until the block ends; each of its resets takes a fresh computer."""
        env = ComputerEnv(self._warm, self._kind.verifier, self._limit_s)
        try:
            yield env
        finally:
            await env.close()


class ComputerBackend:
    """Implement the back-ends `terminal` and `computer` (an `EnvBackend`, which documents its methods).

    name: as it is registered. form: class of its settings. apps: program -> Debian package, of the applications that
    its tasks use. own: suites loaded from manifests, by name. Methods that take settings raise BadInput for wrong ones,
    except `diagnose`, which yields a finding.
    """

    def __init__(self, name: str, form: type[TerminalSettings], apps: Mapping[str, str]) -> None:
        self._name, self._form, self._apps = name, form, apps
        self.own: dict[str, OsworldSuite | ManifestSuite] = {}

    def suites(self) -> Iterable[str]:
        shipped = SHIPPED_COMPUTER_SUITES.values()
        return [*(suite.name for suite in shipped if suite.environment == self._name), *self.own]

    def suite(self, name: str) -> TaskSuite:
        return self.own.get(name) or SHIPPED_COMPUTER_SUITES[name]

    def load(self, path: Path) -> TaskSuite:
        """Load and register the suite of the manifest at `path`. Raises BadInput for a wrong one, or a taken name."""
        return registry.register_external_suite(self.own, load_computer_suite(path, self._name), path)

    def verifier(self, task: Task) -> Verifier:
        found = COMPUTER_VERIFIERS.get(task.verifier)
        if found is None:
            fix = did_you_mean(task.verifier, COMPUTER_VERIFIERS)
            raise BadInput(f"no verifier is called {task.verifier!r}", where=task.task_id, fix=fix)
        return found

    def limits(self, settings: Settings) -> EnvLimits:
        return self._chosen(settings).limits

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        return self._chosen(settings).model_dump(exclude=_NOT_IN_IDENTITY)

    def check(self, settings: Settings) -> None:
        chosen = self._chosen(settings)
        for world in self.own.values():
            if world.judging_s > chosen.timeout_s:
                raise BadInput(
                    f"judging a task of {world.name} may take {world.judging_s:g} s, and timeout_s is less",
                    where=f"sandbox.kinds.{self._name}",
                    fix=f"raise timeout_s to {world.judging_s:g}",
                )
        try:
            self._check_requirements(chosen)
        except EnvError as error:
            raise BadInput(error.what, where=f"sandbox.kinds.{self._name}", fix=error.fix) from None

    def diagnose(self, settings: Settings) -> Iterable[Finding]:
        yield run_diagnostic(self._name, lambda: self._check_requirements(self._chosen(settings)))
        for world in self.own.values():
            if isinstance(world, OsworldSuite):
                yield Finding(world.name, "ok" if not world.left_out else "optional", world.told)

    @asynccontextmanager
    async def open(self, settings: Settings, root: Path | None) -> AsyncIterator[EnvPool]:
        chosen = self._chosen(settings)
        async with WarmPool(lambda: Computer.start(chosen), chosen.warm) as warm:
            yield ComputerPool(self, warm, chosen.timeout_s)

    # -- inside -------------------------------------------------------------------------------------------------------
    def _chosen(self, settings: Settings) -> TerminalSettings:
        chosen = parse_backend_settings(settings, self._name, self._form)
        if chosen.run_s + _STEP_MARGIN_S > chosen.timeout_s:
            raise BadInput(
                f"run_s is {chosen.run_s:g}, and a step must be done in {chosen.timeout_s:g} s",
                where=f"sandbox.kinds.{self._name}",
                fix=f"raise timeout_s to {chosen.run_s + _STEP_MARGIN_S:g}, or lower run_s",
            )
        return chosen

    def _check_requirements(self, chosen: TerminalSettings) -> str:
        """Return a line about the requirements, which are met. Raises EnvError, with the fix, where one is missing."""
        screen, machine = issubclass(self._form, ComputerSettings), chosen.machine
        if screen and not machine.image and (lacking := desktop.list_missing_packages(self._apps)):
            raise EnvError(f"desktops lack {', '.join(lacking)}", fix=f"apt-get install {' '.join(lacking)}")
        why, fix = machine.missing()
        judged = any(world.judging_s for world in self.own.values())
        if not why and judged and (lacking := isolation.explain_missing_bwrap()):
            why, fix = f"no checker without bubblewrap: {lacking}", "apt-get install bubblewrap"
        if why:
            raise EnvError(why, fix=fix)
        works = f"{machine.walls} works" + (f", and has the image {machine.image}" if machine.image else "")
        return f"Xvnc, openbox and the applications are there, and {works}" if screen and not machine.image else works
