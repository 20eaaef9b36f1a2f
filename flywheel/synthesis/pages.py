"""Tasks of third-party pages: one for each variant and seed of a manifest.

Where the page itself tells the instruction, it is known only once the page was opened: `instruct` does that when the
tasks are made, so that the table `tasks` holds what was asked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from flywheel.agent.actions import Hotkey
from flywheel.environments.env import Task
from flywheel.errors import EnvError
from flywheel.sandbox import packages
from flywheel.sandbox.manifests import VERIFIER, PageManifest


def make_task(manifest: PageManifest, variant: str, seed: int, split: str, domain: str = "") -> Task:
    """One task of a manifest. Its instruction is "" where the page tells it. Raises BadInput for unfetched packages.

    domain: by default the one that the manifest names.
    """
    params = {"variant": variant, "seed": seed}
    identity = json.dumps([manifest.name, variant, manifest.level, seed])
    return Task(
        task_id="k" + hashlib.sha256(identity.encode()).hexdigest()[:15],
        domain=domain or manifest.domain,
        world=manifest.name,
        template=variant,
        level=manifest.level,
        seed=seed,
        instruction=manifest.instruct(variant),
        params=params,
        max_steps=manifest.max_steps,
        split=split,
        verifier=VERIFIER,
        threshold=1.0,
        checksum=checksum(manifest),
    )


def checksum(manifest: PageManifest) -> str:
    """sha256 of what a task was made for: the manifest, and the files of its page where they are ours to serve."""
    if manifest.url or manifest.server:
        files = packages.checksum(manifest.template) if manifest.template else ""
    else:
        files = manifest.sha256 or packages.checksum(packages.served(manifest))
    said = manifest.model_dump_json(exclude={"path"})
    return hashlib.sha256(f"{said}\n{files}".encode()).hexdigest()


async def instruct(tasks: Iterable[Task], lease: Callable[[Task], AbstractAsyncContextManager[Any]]) -> list[Task]:
    """The tasks, with the instructions that their pages tell. lease: `Environments.env`.

    Raises EnvError where a page cannot be opened or read.
    """

    async def one(task: Task) -> Task:
        if task.instruction:
            return task
        async with lease(task) as env:
            result = await env.reset(task, task.seed)
            while "dialog" in result.info["state"] and not result.truncated:  # of a page that asks before it tells
                result = await env.step(Hotkey(("enter",)))
        if "instruction" not in result.info["state"]:
            raise EnvError("the page opens dialogs without end", where=f"world {task.world}, task {task.task_id}")
        return dataclasses.replace(task, instruction=" ".join(result.info["state"]["instruction"].split()))

    return list(await asyncio.gather(*(one(task) for task in tasks)))


def turns(manifests: Iterable[PageManifest], split: str) -> list[tuple[PageManifest, list[tuple[str, int]]]]:
    """Those that have tasks in a split, each with its (variant, level) slots."""
    chosen = [one for one in manifests if split in one.splits]
    return [(one, [(variant, one.level) for variant in one.variants]) for one in chosen]
