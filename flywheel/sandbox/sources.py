"""Where a task's page comes from: the worlds of the package, or a third-party page by its manifest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from flywheel.environments.env import Task
from flywheel.sandbox.manifests import load_all
from flywheel.sandbox.pages import ManifestPages
from flywheel.sandbox.sessions import PageSession
from flywheel.settings import Settings
from flywheel.worlds.server import WorldServer


class Sources:
    """A PageSource over others: `pages` for the tasks it knows, `worlds` for all others."""

    def __init__(self, worlds: WorldServer, pages: ManifestPages | None) -> None:
        self.worlds, self.pages = worlds, pages

    @property
    def start_s(self) -> float:
        """The longest that the start of a session's own server may take."""
        return self.pages.start_s if self.pages else 0.0

    def open(self, task: Task, seed: int) -> PageSession:
        return self.pages.open(task, seed) if self.pages and self.pages.knows(task) else self.worlds.open(task, seed)


@asynccontextmanager
async def open_sources(settings: Settings, root: Path | None = None) -> AsyncIterator[Sources]:
    """Servers of the worlds and of the manifests that the settings name.

    root: what relative paths of synthesis.manifests are relative to, by default the current folder. Raises BadInput
    for a wrong manifest, or one whose package is not fetched.
    """
    manifests = load_all(settings.synthesis.manifests, root or Path())
    async with AsyncExitStack() as stack:
        worlds = await stack.enter_async_context(WorldServer())
        pages = await stack.enter_async_context(ManifestPages(manifests)) if manifests else None
        yield Sources(worlds, pages)
