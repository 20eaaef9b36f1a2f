"""Sessions of third-party pages: a manifest's page, served where it is ours to serve or by a server of the session's
own, reset with the task's seed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from flywheel.environments.env import Task
from flywheel.errors import BadInput
from flywheel.reward import verifier
from flywheel.sandbox import packages, reading
from flywheel.sandbox.backend import Backend
from flywheel.sandbox.entry import Entry, entry_of
from flywheel.sandbox.files import FileServer, Folder
from flywheel.sandbox.identity import Identity
from flywheel.sandbox.manifest_parts import Parameter
from flywheel.sandbox.manifests import VERIFIER, PageManifest, check_start
from flywheel.sandbox.programs import Programs


@dataclass(frozen=True)
class ManifestSession:
    """One session, as `flywheel.sandbox.sessions.PageSession` asks. The page keeps its state itself, so a checkpoint
    of it is brought back by playing its actions again."""

    reader: reading.Reader
    url: str
    allowed: tuple[str, ...]
    viewport: tuple[int, int] | None
    step_ms: int | None
    prepare: str
    state_expression: str
    backend: Backend | None = None
    entry: Entry | None = None
    restorable: bool = False
    files: Path | None = None

    def state(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """What the verifier reads. Raises EnvError naming the manifest's field that could not be read."""
        page = str(seen.get("url", self.url))
        for prefix in self.allowed:
            page = page.removeprefix(prefix)
        if "dialog" in seen:
            return self.reader.untold(page)
        return self.reader.state(seen, page)

    def score(self, state: Mapping[str, Any]) -> float:
        return verifier.apply(reading.page_reward, VERIFIER, {}, state, self.url)

    def keep(self) -> bytes:
        return b""

    def bring_back(self, kept: bytes) -> None:
        pass

    def close(self) -> None:
        if self.backend is not None:
            self.backend.stop()


class ManifestPages:
    """The pages of some manifests: `async with ManifestPages(manifests) as pages:`, a PageSource.

    Raises BadInput where a package is not fetched, a first page or a server's program is not there.
    """

    def __init__(self, manifests: Mapping[str, PageManifest]) -> None:
        self._manifests = dict(manifests)
        self._served: dict[str, Folder] = {}
        self._programs: dict[str, Programs] = {}
        self._backends: list[Backend] = []
        folders: dict[str, Folder] = {}  # manifests of one folder share its port
        for name, manifest in self._manifests.items():
            if manifest.server is not None:
                self._programs[name] = Programs(manifest)
            elif not manifest.url:
                root = packages.served(manifest)
                check_start(manifest, root)
                folder = Folder(root, manifest.alias)
                self._served[name] = folders.setdefault(f"{root} {sorted(manifest.alias.items())}", folder)
        self._server = FileServer(list(folders.values()))

    async def __aenter__(self) -> ManifestPages:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*(backend.gone() for backend in self._backends))
        await self._server.__aexit__(*error)

    @property
    def start_s(self) -> float:
        """The longest that the start of a session's server may take."""
        return max((1.5 * one.server.start_s for one in self._manifests.values() if one.server), default=0.0)

    def knows(self, task: Task) -> bool:
        return task.world in self._manifests

    def missed(self, name: str) -> list[str]:
        """The newest paths that a manifest's page asked us for and that are not there."""
        return list(self._served[name].missed) if name in self._served else []

    def open(self, task: Task, seed: int) -> ManifestSession:
        """A session of a task. Raises BadInput for a task of no manifest, or of a variant that it has not."""
        manifest = self._manifests.get(task.world)
        if manifest is None:
            raise BadInput(f"no manifest is called {task.world!r}", where=task.task_id, fix="see synthesis.manifests")
        if task.template not in manifest.variants:
            raise BadInput(
                f"the manifest has no variant {task.template!r}",
                where=f"{manifest.path.name}, task {task.task_id}",
                fix=f"it has {', '.join(manifest.variants)}",
            )
        backend = self._backend(manifest, task.template, seed)
        origin = backend.origin if backend else manifest.origin or self._server.url(self._served[manifest.name])
        address = manifest.url or f"{origin}/{manifest.first}"
        address = _seeded(address.replace("{variant}", task.template), manifest, seed)
        return ManifestSession(
            reading.Reader(manifest, Identity(manifest, address, task.template, seed)),
            address,
            tuple(f"{one}/" for one in (origin, *manifest.origins)),
            manifest.viewport,
            manifest.step_ms,
            reading.prepare(manifest, seed, task.template),
            reading.expression(manifest, seed, task.template),
            backend,
            entry_of(manifest, origin, {"seed": str(seed), "variant": task.template}),
            files=manifest.file_folder,
        )

    def _backend(self, manifest: PageManifest, variant: str, seed: int) -> Backend | None:
        if manifest.server is None:
            return None
        self._backends = [one for one in self._backends if not one.over]
        backend = Backend(manifest, variant, seed, self._programs[manifest.name])
        self._backends.append(backend)
        return backend


def _seeded(address: str, manifest: PageManifest, seed: int) -> str:
    """The address with its seed parameter, where the page takes its seed from there."""
    if not isinstance(manifest.reset, Parameter):
        return address
    parts = urlsplit(address)
    query = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != manifest.reset.parameter]
    return parts._replace(query=urlencode([*query, (manifest.reset.parameter, str(seed))])).geturl()
