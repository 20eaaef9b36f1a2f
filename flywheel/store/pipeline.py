"""The pipeline, made from what the stages declare: their order, and DVC's file of them.

A stage is a module of `flywheel/stages` with a `STAGE`. It runs after those that write what it reads; what is there
once a domain is repeated over the domains of the iteration (`synthesis.domains`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from flywheel.errors import BadInput
from flywheel.store.artifacts import DOMAIN, Artifact, Record, of_domains
from flywheel.workspace import Workspace, label

_STAGES = "flywheel.stages"
_HERE = Workspace(Path())
ROOT = "../.."  # the workspace, from the folder of an iteration: what paths in its dvc.yaml begin from
HEAD = """\
# The stages of this iteration for DVC, written by flywheel from what flywheel/stages declares: edits are overwritten.
# Prefect runs the same commands; DVC records them, and `dvc repro` alone gives the same result. The iteration names
# what it reads of the one before it, so the loop has no cycle, and has its own frozen parameters, so an edit of
# params.yaml changes no past iteration.
"""


@cache
def stages() -> tuple[Any, ...]:
    """All stages (`stages/base.py: Stage`) in their order: as what they read is written, then by name."""
    package = importlib.import_module(_STAGES)  # by its name, as plug-ins are found: the stages stand above this
    modules = (importlib.import_module(f"{_STAGES}.{one.name}") for one in pkgutil.iter_modules(package.__path__))
    declared = {module.STAGE.name: module.STAGE for module in modules if hasattr(module, "STAGE")}
    return tuple(declared[name] for name in _sorted(declared.values()))


def order(domains: Iterable[str], *, closing: bool = False) -> tuple[str, ...]:
    """Names of the stages of a turn in the order in which they run. closing: and of those after its end."""
    names = []
    for stage in stages():
        if closing or not stage.closing:
            names += _instances(stage.name, domains)
    return tuple(names)


def until(name: str | None, domains: Iterable[str]) -> tuple[str, ...]:
    """The stages of a turn up to this one, or all of them. Raises BadInput where it has none of that name."""
    names = order(domains)
    if name is None:
        return names
    if name not in names:
        raise BadInput(f"the turn has no stage {name}", where="until", fix=f"one of: {', '.join(names)}")
    return names[: names.index(name) + 1]


def writers(names: Sequence[str], domains: Sequence[str]) -> dict[str, set[str]]:
    """Of each of these stages of a turn, those among them that write what it reads: it runs after them."""
    declared = {name: get(name) for name in names}
    written = {one: name for name, stage in declared.items() for one in _of(stage, name, domains, stage.outputs)}
    reads = {name: _of(stage, name, domains, stage.reads) for name, stage in declared.items()}
    return {name: {written[one] for one in needed if one in written} for name, needed in reads.items()}


def get(name: str) -> Any:
    """The stage of that name, such as `rollout` or `rl-games`. Raises BadInput."""
    for stage in stages():
        before, domain, _ = stage.name.partition(DOMAIN)
        if name == stage.name or (domain and name.startswith(before) and name != before):
            return stage
    known = ", ".join(stage.name.replace(DOMAIN, "<domain>") for stage in stages())
    raise BadInput(f"unknown stage {name}", fix=f"one of: {known}")


def path(ws: Workspace, iteration: int) -> Path:
    """Of the iteration's dvc.yaml: it is there from the iteration's beginning on."""
    return ws.iteration(iteration) / "dvc.yaml"


def dvc_yaml(iteration: int, domains: Sequence[str]) -> str:
    """DVC's file of an iteration's stages. domains: that it has."""
    named = [(stage, name) for stage in stages() for name in _instances(stage.name, domains)]
    return HEAD + "stages:\n" + "\n".join(_dvc_stage(stage, name, iteration, domains) for stage, name in named)


def _dvc_stage(stage: Any, name: str, iteration: int, domains: Sequence[str]) -> str:
    deps = [_path(one, iteration) for one in _of(stage, name, domains, stage.reads)]
    small = [one for one in stage.outputs if isinstance(one, Record)]
    outs = [_path(one, iteration) for one in _of(stage, name, domains, stage.outputs) if one not in small]
    lines = [f"{name}:", f"  wdir: {ROOT}", f"  cmd: flywheel stage {name} --iteration {label(iteration)}"]
    if stage.settings:
        frozen = _HERE.frozen_params(iteration).as_posix()
        lines += ["  params:", f"    - {frozen}: [{', '.join(stage.settings)}]"]
    if deps:
        lines += ["  deps:", *(f"    - {one}" for one in deps)]
    lines += ["  outs:", *(f"    - {one}" for one in outs)]
    for one in small:  # of use to people: git keeps it
        lines += [f"    - {_path(one, iteration)}:", "        cache: false"]
    return "".join(f"  {line}\n" for line in lines)


def _of(stage: Any, name: str, domains: Sequence[str], declared: Sequence[Artifact]) -> list[Artifact]:
    """What the stage of that name has of what is declared: of its own domain, or of all."""
    own = [name.removeprefix(stage.name.partition(DOMAIN)[0])] if DOMAIN in stage.name else domains
    return [one for whole in declared for one in of_domains(whole, own)]


def _path(artifact: Artifact, iteration: int) -> str:
    previous = isinstance(artifact, Record) and artifact.previous
    return artifact.path(_HERE, iteration - 1 if previous else iteration).as_posix()


def _instances(name: str, domains: Iterable[str]) -> list[str]:
    return [name.replace(DOMAIN, domain) for domain in domains] if DOMAIN in name else [name]


def _sorted(declared: Iterable[Any]) -> list[str]:
    """Names, each after those that write what it reads; of those that could run, the first by name comes first."""
    writer = {one: stage.name for stage in declared for one in stage.outputs}
    graph = TopologicalSorter()
    for stage in declared:
        graph.add(stage.name, *(writer[one] for one in stage.reads if one in writer))
    graph.prepare()
    found: list[str] = []
    ready: list[str] = []
    while graph.is_active():
        ready = sorted([*ready, *graph.get_ready()])
        found.append(ready.pop(0))
        graph.done(found[-1])
    return found
