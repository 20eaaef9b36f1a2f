"""Make the tasks of third-party pages: one for each variant and seed of a manifest."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from flywheel.agent.actions import Action, Finished, Hotkey, ParseError
from flywheel.agent.parsing.parser import parse_response
from flywheel.envs.base import Task
from flywheel.envs.browser.pages import packages
from flywheel.envs.browser.pages.manifest import ANSWER_VERIFIER, PAGE_VERIFIER, PageManifest
from flywheel.envs.tasks.verification import parse_page_kill_rate
from flywheel.utils.errors import BadInput, EnvError

# Tasks of third-party pages: one for each variant and seed of a manifest. An instruction that the page itself gives is
# known only once the page has been opened (`fetch_page_instructions`).


def make_page_task(manifest: PageManifest, variant: str, seed: int, split: str, domain: str = "") -> Task:
    """Make the task of a third-party page for a variant and seed; its instruction is "" where the page gives it.

    Its id is a hash of the manifest's name, variant, level and seed. variant: of the page; not checked against the
    manifest. seed: any integer. split: train or eval. domain: by default the one that the manifest names. Raises
    BadInput for packages that are not fetched, where the manifest gives no checksum of them; OSError for a file that
    cannot be read.
    """
    whole, manifest = manifest, manifest.for_variant(variant)
    slot = (manifest.name, variant, manifest.level, seed)
    threshold, answer, checksum = manifest.threshold, list(manifest.answer), page_checksum(manifest)
    attacked = whole.tasks[variant].verification if variant in whole.tasks else {}
    return Task(
        hash_task_id(*slot),
        domain or manifest.domain,
        *slot,
        manifest.instruct(variant),
        params={"variant": variant, "seed": seed} | ({"answer": answer} if answer else {}),
        max_steps=manifest.max_steps,
        split=split,
        verifier="" if manifest.unverified else ANSWER_VERIFIER if answer else PAGE_VERIFIER,
        threshold=threshold.get(variant, 1.0) if isinstance(threshold, dict) else threshold,
        checksum=checksum,
        source=manifest.made_by,
        verifier_kill_rate=parse_page_kill_rate(attacked, checksum),
    )


def hash_task_id(*content: Any) -> str:
    """Return a task's id: "k" and 15 hexadecimal digits of the hash of `content`, JSON values that tell tasks apart."""
    return "k" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:15]


def page_checksum(manifest: PageManifest) -> str:
    """Hash all that a page's task depends on: the manifest, the page's files where we serve them, and its scripts.

    Returns sha256 in hexadecimal digits, independent of the manifest's path. Raises BadInput for packages that are not
    fetched, where the manifest gives no checksum of them; OSError for a file that cannot be read.
    """
    files = manifest.hash_files("served", lambda: _hash_served_files(manifest))
    for name, path in manifest.scripts.items():
        files += f"\n{name} {manifest.hash_files(name, lambda path=path: _hash_path(path))}"
    # Left out where unused: checksums from before they came hold.
    later = {"threshold": 1, "tasks": {}, "answer": (), "unverified": False, "made_by": "page"}
    unused = {name for name, value in later.items() if getattr(manifest, name) == value}
    content = manifest.model_dump_json(exclude={"path"} | unused)
    return hashlib.sha256(f"{content}\n{files}".encode()).hexdigest()


def _hash_served_files(manifest: PageManifest) -> str:
    if manifest.url or manifest.server:
        return packages.hash_served_folder(manifest.template) if manifest.template else ""
    return manifest.sha256 or packages.hash_served_folder(packages.find_served_folder(manifest))


def _hash_path(path: Path) -> str:
    return packages.hash_served_folder(path) if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()


async def fetch_page_instructions(
    tasks: Iterable[Task], lease: Callable[[Task], AbstractAsyncContextManager[Any]]
) -> list[Task]:
    """Open the page of each task that has no instruction yet, and return all tasks, in their order, with instructions.

    Pages are opened all at once, as far as `lease` lends environments. lease: lends one (`EnvProvider.env`). Raises
    EnvError where a page cannot be opened or read, or opens dialogs without end, and what `lease`, and `reset` and
    `step` of an `Env`, raise.
    """

    async def one(task: Task) -> Task:
        if task.instruction:
            return task
        async with lease(task) as env:
            result = await env.reset(task, task.seed)
            while "dialog" in result.info["state"] and not result.truncated:  # it hides the instruction
                result = await env.step(Hotkey(("enter",)))
        if "instruction" not in result.info["state"]:
            raise EnvError("the page opens dialogs without end", where=f"world {task.world}, task {task.task_id}")
        return dataclasses.replace(task, instruction=" ".join(result.info["state"]["instruction"].split()))

    return list(await asyncio.gather(*(one(task) for task in tasks)))


def list_proof_steps(task: Task, proof: Mapping[str, Any]) -> list[tuple[str, Action]]:
    """Return the solution that a page's task carries, as thoughts and actions: the `actions` of its proof, then its
    answer; [] where it has neither.

    proof: of the task in its manifest; its actions are texts in the grammar of demonstrations, its `thoughts`, one for
    each action, may be missing: then they are "". Raises BadInput for a text that is no action.
    """
    from flywheel.store.interop.demonstration import DEMONSTRATION_GRAMMAR  # imports pyarrow

    actions = proof.get("actions")
    texts = [text for text in actions if isinstance(text, str)] if isinstance(actions, list) else []
    answer = next(iter(task.params.get("answer", ())), None)
    if not texts and answer is None:
        return []
    steps = [parse_response(f"Action: {text}", DEMONSTRATION_GRAMMAR).action for text in texts]
    for text, step in zip(texts, steps, strict=True):
        if isinstance(step, ParseError):
            raise BadInput(
                f"no action: {text!r}", where=f"proof.actions of {task.template}", fix="see docs/verifiers.md"
            )
    said = proof.get("thoughts")
    told = isinstance(said, list) and len(said) == len(texts) == len(actions or ())
    thoughts = [str(thought) for thought in said] if told else [""] * len(steps)
    last = f"The answer is {answer}." if answer else "I am done."
    return [*zip(thoughts, steps, strict=True), (last, Finished(answer or ""))]


def list_page_slots(manifests: Iterable[PageManifest], split: str) -> list[tuple[PageManifest, list[tuple[str, int]]]]:
    """List the manifests that have tasks in `split`, each with its (variant, level) slots."""
    found = []
    for one in manifests:
        chosen = [variant for variant in one.variants if split in one.splits_of(variant)]
        if chosen:
            found.append((one, [(variant, one.for_variant(variant).level) for variant in chosen]))
    return found
