"""What is told of a session beside what is seen: notes for its user, and what failed in its pages."""

from __future__ import annotations

_MAX_TOLD = 5  # notes of one step
_MAX_NOTES = 1000  # that wait to be told
_MAX_FAULTS = 50  # of one session


class Notes:
    """faults: what failed in the pages since the session began: uncaught errors, loads."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self.faults: list[str] = []

    def add(self, text: str) -> None:
        if len(self._notes) < _MAX_NOTES:
            self._notes.append(text)

    def fault(self, text: str) -> None:
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(text)

    def take(self) -> list[str]:
        """The notes since it was asked last."""
        notes, self._notes = self._notes, []
        if len(notes) > _MAX_TOLD:
            notes = [*notes[:_MAX_TOLD], f"and {len(notes) - _MAX_TOLD} more"]
        return notes

    def clear(self) -> None:
        self._notes, self.faults = [], []
