"""Read the letters of the mailbox, in English and Chinese, from letters.json.

Each has a subject, a text, and who may have written it. Its placeholders are filled with drawn facts; {me} and {name}
are the receiver and the sender. `questions` has the question that may be asked about a letter, by its key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Letter:
    """Hold a letter. key: the same in both languages. file: name of the attachment, "" for none."""

    key: str
    subject: str
    text: str
    file: str = ""


_READ = json.loads((Path(__file__).parent / "letters.json").read_text(encoding="utf-8"))
COMPANIES: dict[str, dict[str, str]] = _READ["companies"]  # letter -> the company's name by language, its address
JUNK: list[str] = _READ["junk"]  # letters that belong into spam
QUESTIONS: dict[str, dict[str, str]] = _READ["questions"]  # letter -> question by language, fact that answers it
FROM_COMPANIES = {one: tuple(Letter(**letter) for letter in _READ[one]["companies"]) for one in ("en", "zh")}
FROM_PEOPLE = {one: tuple(Letter(**letter) for letter in _READ[one]["people"]) for one in ("en", "zh")}
ANSWERS: dict[str, list[str]] = {one: _READ[one]["answers"] for one in ("en", "zh")}
