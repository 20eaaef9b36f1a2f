"""Search the pages of a site by full text (SQLite FTS5, BM25)."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from functools import lru_cache

# Words of nearly every question: they cost time and find nothing.
_EMPTY = re.compile(
    "a|alone|an|and|answer|are|as|at|between|by|called|entry|find|for|found|from|given?|gives|go|has|have|in|includes|is|it|its|"
    "just|links?|list|name|number|of|on|one|or|pages?|take|that|the|there|these|this|to|under|unit|what|which|whose|with"
)
_COMMON = 0.25  # share of the pages


class PageIndex:
    """Hold an index of a site's pages for full-text search. texts: title and text by address; their order breaks ties.

    Words that stand on a quarter of the pages are left out of quick queries: they weigh little, and take most time.
    """

    def __init__(self, texts: Mapping[str, tuple[str, str]]) -> None:
        self._addresses = list(texts)
        self._texts = {address: f"{title}\n{text}".casefold() for address, (title, text) in texts.items()}
        self._base = sqlite3.connect(":memory:")
        self._base.execute("CREATE VIRTUAL TABLE pages USING fts5(title, text, tokenize='unicode61')")
        self._base.executemany("INSERT INTO pages VALUES (?, ?)", texts.values())
        self._base.execute("CREATE VIRTUAL TABLE words USING fts5vocab(pages, row)")
        common = self._base.execute("SELECT term FROM words WHERE doc > ?", (max(3, len(texts) * _COMMON),))
        self._common = {word for (word,) in common}
        self.holds = lru_cache(100_000)(self._holds)

    def first(self, query: str, count: int, every: bool = False) -> list[str]:
        """Return the addresses of the best `count` pages for a query's words; [] where none of these counts.

        every: whether common words, and those of nearly every question, count too.
        """
        asked = dict.fromkeys(re.findall(r"\w+", query.casefold()))
        told = [word for word in asked if not _EMPTY.fullmatch(word)]
        words = list(asked) if every else [word for word in told if word not in self._common] or told
        if not words:
            return []
        rows = self._base.execute(
            "SELECT rowid FROM pages WHERE pages MATCH ? ORDER BY rank, rowid LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words), count),
        )
        return [self._addresses[number - 1] for (number,) in rows]

    def _holds(self, address: str, text: str) -> bool:
        """Tell whether a page's text has `text`, as whole words."""
        return contains_text(self._texts[address], text.casefold())


def contains_text(text: str, part: str) -> bool:
    """Tell whether `part` stands in `text` as whole words; both in one case."""
    place = text.find(part)
    while place >= 0:
        before, after = text[max(0, place - 1) : place], text[place + len(part) : place + len(part) + 1]
        joined = (part[:1].isalnum() and before.isalnum()) or (part[-1:].isalnum() and after.isalnum())
        if not joined:
            return True
        place = text.find(part, place + 1)
    return False
