"""Sessions of third-party pages: a manifest's page, served where it is ours to serve, reset with the task's seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from flywheel.errors import BadInput
from flywheel.sandbox import packages, reading
from flywheel.sandbox.env import Task
from flywheel.sandbox.files import FileServer, Folder
from flywheel.sandbox.manifests import Manifest, Parameter, check_start


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
    restorable: bool = False

    def state(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """What the verifier reads. Raises EnvError naming the manifest's field that could not be read."""
        page = str(seen.get("url", self.url))
        for prefix in self.allowed:
            page = page.removeprefix(prefix)
        return self.reader.state(seen.get("game"), page)

    def keep(self) -> bytes:
        return b""

    def bring_back(self, kept: bytes) -> None:
        pass

    def close(self) -> None:
        pass


class ManifestPages:
    """The pages of some manifests: `async with ManifestPages(manifests) as pages:`, a PageSource.

    Raises BadInput where a package is not fetched or a first page is not there.
    """

    def __init__(self, manifests: Mapping[str, Manifest]) -> None:
        self._manifests = dict(manifests)
        self._served: dict[str, Folder] = {}
        folders: dict[str, Folder] = {}  # manifests of one folder share its port
        for name, manifest in self._manifests.items():
            if not manifest.url:
                root = packages.served(manifest)
                check_start(manifest, root)
                folder = Folder(root, manifest.alias)
                self._served[name] = folders.setdefault(f"{root} {sorted(manifest.alias.items())}", folder)
        self._server = FileServer(list(folders.values()))

    async def __aenter__(self) -> ManifestPages:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.__aexit__(*error)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts besides our own that these pages may reach."""
        urls = [url for one in self._manifests.values() for url in (one.url, *one.origins) if url]
        return tuple(sorted({urlsplit(url).hostname or "" for url in urls} - {"127.0.0.1"}))

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
                f"the manifest has no variant {task.template!r}", where=f"{manifest.path.name}, task {task.task_id}",
                fix=f"it has {', '.join(manifest.variants)}",
            )  # fmt: skip
        origin = manifest.origin or self._server.url(self._served[manifest.name])
        address = manifest.url or f"{origin}/{manifest.start.lstrip('/')}"
        return ManifestSession(
            reading.Reader(manifest), _seeded(address.replace("{variant}", task.template), manifest, seed),
            tuple(f"{one}/" for one in (origin, *manifest.origins)), manifest.viewport, manifest.step_ms,
            reading.prepare(manifest, seed, task.template), reading.expression(manifest, seed, task.template),
        )  # fmt: skip


def _seeded(address: str, manifest: Manifest, seed: int) -> str:
    """The address with its seed parameter, where the page takes its seed from there."""
    if not isinstance(manifest.reset, Parameter):
        return address
    parts = urlsplit(address)
    query = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != manifest.reset.parameter]
    return parts._replace(query=urlencode([*query, (manifest.reset.parameter, str(seed))])).geturl()
