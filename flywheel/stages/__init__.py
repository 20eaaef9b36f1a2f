"""The stages of a turn, by name. Each file here is one stage: what it reads, what it does, what it writes."""

from __future__ import annotations

import importlib

from flywheel import frozen
from flywheel.errors import BadInput
from flywheel.stages.base import Context, Stage, StageResult, clear_staging, do_shard, finish, run_stage
from flywheel.workspace import Workspace

__all__ = ["Context", "Stage", "StageResult", "clear_staging", "do_shard", "finish", "get", "order", "run_stage"]

_BEFORE_RL = ("ingest", "synthesize", "rollout", "score", "route", "ct", "sft")
_AFTER_RL = ("merge", "evaluate", "promote")


def order(ws: Workspace, iteration: int) -> tuple[str, ...]:
    """The stages of one turn in the order they run; `rl-<domain>` once a domain."""
    domains = frozen.load(ws, iteration).synthesis.domains
    return (*_BEFORE_RL, *(f"rl-{domain}" for domain in domains), *_AFTER_RL)


def get(name: str) -> Stage:
    """The stage of that name; imported when asked for, since some bring torch. Raises BadInput."""
    known = (*_BEFORE_RL, *_AFTER_RL, "runs")
    module, _, domain = name.partition("-")
    if module == "rl" and domain:
        return importlib.import_module("flywheel.stages.rl").stage(domain)
    if name not in known:
        raise BadInput(f"unknown stage {name}", fix=f"one of: {', '.join(known)}, rl-<domain>")
    return importlib.import_module(f"flywheel.stages.{name}").STAGE
