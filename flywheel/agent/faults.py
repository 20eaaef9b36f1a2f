"""What the readers of a text raise among themselves. `parser.parse` turns it into a value; nothing else sees it."""

from __future__ import annotations

from flywheel.agent.actions import ParseError


class Fault(Exception):
    """position: in the text."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.error = ParseError(reason, position)
