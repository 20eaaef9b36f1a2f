"""Make wrong answers, which a verifier must refuse, and other legal forms of right ones, which it must accept."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation

from flywheel.synthesis.verifier_attack.mutations import misspell

Answer = str | int | float | Sequence[str]


def fold_answer(wanted: Answer, said: str) -> object:
    """Reduce an answer to a value that is equal for all legal forms of it.

    wanted: the right answer, whose type tells how `said` is read: as a number (a text that is none stays as it is), as
    a text without case and accents, or as a list of texts in any order.
    """
    if isinstance(wanted, str):
        bare = "".join(one for one in unicodedata.normalize("NFKD", said) if not unicodedata.combining(one))
        return " ".join(bare.split()).casefold().strip(" .。\"'“”‘’")
    if isinstance(wanted, int | float):
        try:
            return Decimal(said.strip().replace(",", ""))
        except InvalidOperation:
            return said
    return sorted(str(fold_answer("", part)) for part in re.split(r"[,;，、；]|\band\b|和", said) if part.strip())


def spoil_answer(wanted: Answer, said: str, others: Sequence[str], rng: random.Random) -> Iterator[str]:
    """Yield wrong answers, and answers that take back what they say.

    wanted: the right answer. said: a form of it. others: right answers to other tasks of the template.
    """
    other = next((one for one in others if fold_answer(wanted, one) != fold_answer(wanted, said)), None)
    if isinstance(wanted, int | float):
        nearby = [f"{wanted + step:g}" for step in (1, -1, 10)]
        yield from nearby
        other = other or nearby[0]
    else:
        yield from misspell(said, rng)
        other = other or f"{said[::-1]}x"
    yield other
    yield ""
    yield f"{said} or {other}"
    yield f"not {said}"
    yield f"{said}, no, {other}"
    yield f"{said}. No, it is {other}."
    yield f"{other} {said}"
    yield f"{said} {said}"
    yield f"It is certainly not {said}"
    yield f"{said} is wrong"
    yield f"{said}, or not"
    if not isinstance(wanted, str | int | float):
        yield from (", ".join(one for one in wanted if one != left) for left in wanted)
        yield f"{said}, {other}"
        yield f"{said}, {wanted[0]}"


def reword_answer(wanted: Answer, said: str) -> Iterator[str]:
    """Yield other legal forms of a right answer, such as a number with commas or a text in capitals."""
    yield f"  {said} "
    yield f"{said}."
    if isinstance(wanted, int | float):
        yield f"{wanted:,}"
        yield f"{float(wanted)}"
        yield str(wanted)
        return
    yield said.upper()
    yield said.lower()
    if isinstance(wanted, str):
        yield f'"{said}"'
        yield unicodedata.normalize("NFD", said)
        return
    yield "; ".join(reversed(wanted))
    yield " and ".join(wanted)
