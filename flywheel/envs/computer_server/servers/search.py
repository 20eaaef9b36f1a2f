"""Serve MCP tools that search and read an encyclopaedia: `search.py FOLDER`, the folder with the module `facts`."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from typing import Any

from rpc import TEXT, ServedTool, ToolRefused, serve_tools

_MOST = 20  # hits
_UNITS = {"melting": "K", "boiling": "K", "density": "g/cm³", "area": "km²"}
_TITLE = 4  # weight of a word in the title against one in the text; twice that if the query has the whole title


def main(folder: str) -> None:
    """Serve the tools `find` and `read` until standard input ends. folder: with the module `facts`."""
    sys.path.insert(0, folder)
    import facts

    articles = facts.articles()
    pages = {key: _render_article(one, articles, facts.KINDS) for key, one in articles.items()}
    words = {key: (_word_set(articles[key].title), _word_set(page)) for key, page in pages.items()}
    pages_with = Counter(word for _, page in words.values() for word in page)
    weights = {word: math.log(1 + len(pages) / count) for word, count in pages_with.items()}  # rare words count more

    def find(query: str, limit: int = 5) -> str:
        asked = _word_set(query) & weights.keys()
        counts = {key: _score_article(asked, *words[key], weights) for key in pages}
        best = sorted((key for key in pages if counts[key]), key=lambda key: -counts[key])[: max(1, min(limit, _MOST))]
        return "\n".join(f"{articles[key].title}: {articles[key].lead}" for key in best) or "nothing was found"

    def read(title: str) -> str:
        by_title = {one.title.casefold(): key for key, one in articles.items()}
        key = by_title.get(title.strip().casefold(), title.strip())
        if key not in pages:
            raise ToolRefused(f"no article is called {title}: search for it")
        return pages[key]

    serve_tools(
        "encyclopaedia",
        [
            ServedTool("find", "Search the encyclopaedia: titles and first sentences of the best articles.",
                 {"query": TEXT, "limit": {"type": "integer", "minimum": 1, "maximum": _MOST}}, ["query"], find),
            ServedTool("read", "An article of the encyclopaedia, by its title.", {"title": TEXT}, ["title"], read),
        ],
    )  # fmt: skip


def _render_article(one: Any, articles: dict[str, Any], kinds: dict[str, str]) -> str:
    lines = [f"{one.title} ({kinds[one.kind]})", one.lead]
    for name, value in one.facts.items():
        if value not in (None, "", []):
            said = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            lines.append(f"{name}: {said} {_UNITS.get(name, '')}".rstrip())
    lines += [f"{label}: {', '.join(articles[key].title for key in keys)}" for label, keys in one.links.items() if keys]
    return "\n".join([*lines, *(f"{label}: {text}" for label, text in one.texts.items() if text)])


def _word_set(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))


def _score_article(
    asked: frozenset[str], title: frozenset[str], page: frozenset[str], weights: dict[str, float]
) -> float:
    in_title = sum(weights[word] for word in asked & title)
    whole = 2 if asked >= title else 1
    return _TITLE * whole * in_title + sum(weights[word] for word in asked & page)


if __name__ == "__main__":
    main(sys.argv[1])
