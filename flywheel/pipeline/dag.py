"""Order the stages by what they read and write, and render the dvc.yaml of an iteration.

A stage is a module of `flywheel/pipeline/stages` with a `STAGE`. It runs after the stages that write what it reads. A
stage with `{domain}` in its name is repeated for each domain of the iteration (`synthesis.domains`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from flywheel.config import Settings
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.pipeline.stage import DOMAIN_PLACEHOLDER, Artifact, Checkpoint, Partition, Record, Stage, expand_domains
from flywheel.store.schema import TABLES
from flywheel.utils.errors import BadInput, did_you_mean

_STAGES = "flywheel.pipeline.stages"
_BLOCKS = Settings.model_fields
_HERE = Workspace(Path())
_WORKSPACE_FROM_ITERATION = "../.."  # the base of all paths in an iteration's dvc.yaml
_DVC_YAML_HEAD = """\
# The stages of this iteration for DVC, written by flywheel from what flywheel/pipeline/stages declares: edits are
# overwritten. Prefect runs the same commands; DVC records them, and `dvc repro` alone gives the same result. The
# iteration names what it reads of the one before it, so the loop has no cycle, and has its own frozen parameters, so an
# edit of params.yaml changes no past iteration.
"""


@cache
def all_stages() -> tuple[Stage, ...]:
    """Return all declared stages in the order in which they run.

    Each comes after those that write what it reads; of those that are ready the first by name goes first, so one that
    nobody reads may come last. Raises BadInput as `check_declarations`.
    """
    package = importlib.import_module(_STAGES)  # by name, like plug-ins: the stages import this module
    modules = [importlib.import_module(f"{_STAGES}.{one.name}") for one in pkgutil.iter_modules(package.__path__)]
    stages = [replace(one.STAGE, source=one.__file__) for one in modules if hasattr(one, "STAGE")]
    check_declarations(stages)
    declared = {stage.name: stage for stage in stages}
    return tuple(declared[name] for name in _topological_order(declared.values()))


def stage_order(domains: Iterable[str], *, closing: bool = False) -> tuple[str, ...]:
    """Return the names of an iteration's stages in the order in which they run.

    domains: of the iteration. closing: whether to include the stages that run after the iteration's end. Raises
    BadInput as `all_stages`.
    """
    running = (stage for stage in all_stages() if closing or not stage.closing)
    return tuple(name for stage in running for name in _instances(stage.name, domains))


def stages_until(name: str | None, domains: Iterable[str]) -> tuple[str, ...]:
    """Return the names of an iteration's stages, in order, up to and including `name`; all where it is None.

    domains: of the iteration; a stage with a domain in its name is repeated for each. Raises BadInput for an unknown
    `name`.
    """
    names = stage_order(domains)
    if name is None:
        return names
    if name not in names:
        raise BadInput(f"an iteration has no stage {name}", where="--until", fix=did_you_mean(name, names))
    return names[: names.index(name) + 1]


def upstream_stages(names: Sequence[str], domains: Sequence[str]) -> dict[str, set[str]]:
    """Return, for each of the stages `names`, those among them that write what it reads.

    names: with domains in place, such as `rl-games`. domains: of the iteration. Raises BadInput for an unknown stage.
    """
    named = [(name, find_stage(name)) for name in names]
    written = {one: name for name, stage in named for one in _artifacts_of(stage, name, domains, stage.outputs)}
    reads = {name: _artifacts_of(stage, name, domains, stage.reads) for name, stage in named}
    return {name: {written[one] for one in needed if one in written} for name, needed in reads.items()}


def find_stage(name: str) -> Stage:
    """Return the stage called `name`, such as `rollout` or `rl-games`; whether the domain exists is not checked.

    The returned stage's own `name` keeps the placeholder: `rl-{domain}`. Raises BadInput for an unknown stage, naming
    the most similar one.
    """
    for stage in all_stages():
        before, domain, _ = stage.name.partition(DOMAIN_PLACEHOLDER)
        if name == stage.name or (domain and name.startswith(before) and name != before):
            return stage
    known = [stage.name.replace(DOMAIN_PLACEHOLDER, "<domain>") for stage in all_stages()]
    raise BadInput(f"unknown stage {name}", fix=did_you_mean(name, known))


def render_dvc_yaml(iteration: int, domains: Sequence[str]) -> str:
    """Render the dvc.yaml of an iteration. domains: the iteration's. Raises BadInput as `all_stages`."""
    named = [(stage, name) for stage in all_stages() for name in _instances(stage.name, domains)]
    stages = "\n".join(_dvc_stage(stage, name, iteration, domains) for stage, name in named)
    return f"{_DVC_YAML_HEAD}stages:\n{stages}"


def _dvc_stage(stage: Stage, name: str, iteration: int, domains: Sequence[str]) -> str:
    deps = [_path(one, iteration) for one in _artifacts_of(stage, name, domains, stage.reads)]
    small = [output for output in stage.outputs if isinstance(output, Record)]
    outs = [_path(one, iteration) for one in _artifacts_of(stage, name, domains, stage.outputs) if one not in small]
    lines = [
        f"{name}:",
        f"  wdir: {_WORKSPACE_FROM_ITERATION}",
        f"  cmd: flywheel stage {name} --iteration {iteration_label(iteration)}",
    ]
    if stage.settings:
        frozen = _HERE.frozen_params(iteration).as_posix()
        lines += ["  params:", f"    - {frozen}: [{', '.join(stage.settings)}]"]
    if deps:
        lines += ["  deps:", *(f"    - {dependency}" for dependency in deps)]
    lines += ["  outs:", *(f"    - {output}" for output in outs)]
    for one in small:  # git keeps it, since people read it
        lines += [f"    - {_path(one, iteration)}:", "        cache: false"]
    return "".join(f"  {line}\n" for line in lines)


def _artifacts_of(stage: Stage, name: str, domains: Sequence[str], declared: Sequence[Artifact]) -> list[Artifact]:
    """List the artifacts that `declared` names for the stage `name`: of its own domain, or of all `domains`."""
    before, placeholder, _ = stage.name.partition(DOMAIN_PLACEHOLDER)
    own = [name.removeprefix(before)] if placeholder else domains
    return [one for whole in declared for one in expand_domains(whole, own)]


def _path(artifact: Artifact, iteration: int) -> str:
    previous = isinstance(artifact, Record) and artifact.previous
    return artifact.path(_HERE, iteration - 1 if previous else iteration).as_posix()


def _instances(name: str, domains: Iterable[str]) -> list[str]:
    return [name.replace(DOMAIN_PLACEHOLDER, domain) for domain in domains] if DOMAIN_PLACEHOLDER in name else [name]


def check_declarations(stages: Sequence[Stage]) -> None:
    """Check the declarations of `stages`: types of fields, names of tables and blocks, and that all inputs are written.

    Raises BadInput, naming the stage, for a field of another type, such as a tuple that lacks its comma, for an unknown
    table or block of the settings, and for a partition or checkpoint that is read and that none of `stages` writes.
    """
    for stage in stages:
        for name, kinds in (("reads", Artifact), ("writes", str | Checkpoint | Record), ("settings", str)):
            value = getattr(stage, name)
            if not isinstance(value, tuple) or not all(isinstance(one, kinds) for one in value):
                what = f"stage {stage.name}: {name} is no tuple of {'names' if kinds is str else 'artifacts'}"
                raise BadInput(
                    what, where=stage.source, fix=f"a tuple of one item ends in a comma; it is {value!r:.100}"
                )
        tables = [one.table for one in stage.reads if isinstance(one, Partition)]
        tables += [one for one in stage.writes if isinstance(one, str)]
        for kind, names, known in (("table", tables, TABLES), ("block of settings", stage.settings, _BLOCKS)):
            for name in names:
                if name not in known:
                    what = f"stage {stage.name} names an unknown {kind}: {name}"
                    raise BadInput(what, where=stage.source, fix=did_you_mean(name, known))
    written = {output for stage in stages for output in stage.outputs}
    for stage in stages:
        for one in stage.reads:
            if not isinstance(one, Record) and one not in written:
                what = f"stage {stage.name} reads {one}, which no stage writes"
                raise BadInput(what, where=stage.source, fix=did_you_mean(str(one), [str(other) for other in written]))


def _topological_order(declared: Iterable[Stage]) -> list[str]:
    """Return the names, each after those that write what it reads; among possible next ones, the first by name."""
    writer = {output: stage.name for stage in declared for output in stage.outputs}
    graph = TopologicalSorter()
    for stage in declared:
        graph.add(stage.name, *(writer[artifact] for artifact in stage.reads if artifact in writer))
    graph.prepare()
    found: list[str] = []
    ready: list[str] = []
    while graph.is_active():
        ready = sorted([*ready, *graph.get_ready()])
        found.append(ready.pop(0))
        graph.done(found[-1])
    return found
