"""What the readers of a text raise among themselves. `parser.parse` turns it into a value; nothing else sees it.

Text whose words are understood and that is refused all the same is refused by one of the names below, with which the
reason begins.
"""

from __future__ import annotations

from flywheel.agent.actions import ParseError

NO_SUCH_ACTION = "no such action here"  # understood, but nothing of the action set equals it
AMBIGUOUS = "ambiguous"  # it may mean two things, and what models mean is not guessed
ONLY_THOUGHT = "only thinking"  # the thinking does not end, so nothing that was written is meant yet


class ParseFailure(Exception):
    """position: in the text."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.error = ParseError(reason, position)


def no_such_action(what: str, at: int) -> ParseFailure:
    return ParseFailure(f"{NO_SUCH_ACTION}: {what[:60]}", at)


def ambiguous(what: str, at: int) -> ParseFailure:
    return ParseFailure(f"{AMBIGUOUS}: {what}", at)
