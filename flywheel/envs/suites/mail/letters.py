"""Letters of the mailbox, in English and Chinese, read from letters.json.

Of each: subject, text, and who may have written it. Placeholders are drawn for each letter; {me} and {name} are the
receiver and the sender. `questions` says which of them a reader may be asked about, by the key of the letter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Letter:
    """key: the same in both languages. file: the name of what is attached, "" for nothing."""

    key: str
    subject: str
    text: str
    file: str = ""


_READ = json.loads((Path(__file__).parent / "letters.json").read_text(encoding="utf-8"))
COMPANIES: dict[str, dict[str, str]] = _READ["companies"]  # letter -> name by language, address
JUNK: list[str] = _READ["junk"]  # letters that belong into spam
QUESTIONS: dict[str, dict[str, str]] = _READ["questions"]  # letter -> the question by language, what answers it
FROM_COMPANIES = {one: tuple(Letter(**letter) for letter in _READ[one]["companies"]) for one in ("en", "zh")}
FROM_PEOPLE = {one: tuple(Letter(**letter) for letter in _READ[one]["people"]) for one in ("en", "zh")}
ANSWERS: dict[str, list[str]] = {one: _READ[one]["answers"] for one in ("en", "zh")}
