"""A policy that says what it was told to, and counts how often it was asked."""

from __future__ import annotations

from collections.abc import Iterable

from flywheel.policy.protocol import Completion


class ToldPolicy:
    """Gives the texts in turn, the last one again and again; an exception among them is raised."""

    def __init__(self, texts: Iterable[str | Exception], version: str = "told") -> None:
        self._texts, self.weight_version, self.asked = list(texts), version, 0

    async def complete(self, context, sampling):
        said = self._texts[min(self.asked, len(self._texts) - 1)]
        self.asked += 1
        if isinstance(said, Exception):
            raise said
        return Completion(said, (len(said), 2), (-0.5, -0.25), 9, self.weight_version, True)

    async def close(self) -> None:
        """Nothing is held."""
