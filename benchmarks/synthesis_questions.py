"""Questions of several pages: how many a minute, and whether what is said of them holds, by other means than ours.

`unique` and `every_hop_needed` are asked of SQLite, not DuckDB; `one_search` of a BM25 that is not FTS5's, over all
words; `closed_book` of three guessers; `on_page`: the proof's values stand on the pages that it names; `oracle`: a
sample is played in the browser. `falls_with_difficulty` is Spearman's correlation of a question's score of difficulty
with the success of a solver that overlooks conditions, loses hops and misses links.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import re
import sqlite3
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from flywheel.config import parse_settings
from flywheel.envs.browser.pages.manifest import load_page_manifest
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks.page_tasks import make_page_task
from flywheel.synthesis.questions.build import QuestionSet, find_questions, write_questions
from flywheel.synthesis.questions.crawl import CrawlBudget
from flywheel.synthesis.questions.draw import Question, question_sql
from flywheel.synthesis.questions.facts import LINKS, normalise_value
from flywheel.synthesis.questions.oracle import play_proof
from flywheel.synthesis.questions.search import contains_text
from flywheel.utils.errors import EnvError

_GOALS = {"questions_per_minute": 1000, "unique": 1.0, "one_search": 0.05, "closed_book": 0.01, "every_hop_needed": 1.0,
          "on_page": 1.0, "oracle": 1.0, "falls_with_difficulty": -0.8}  # fmt: skip
_AT_MOST = {"one_search", "closed_book", "falls_with_difficulty"}
_TRIALS, _NOTICED, _FOLLOWED, _CLICKED = 1000, 0.7, 0.7, 0.95  # of the solver


def add_options(parser: Any) -> None:
    """Add the options of this case."""
    parser.add_argument("--sources", nargs="+", default=["encyclopaedia"], help="SOURCE or FOLDER:START")
    parser.add_argument("--questions", type=int, default=1000, help="of each source (default: %(default)s)")
    parser.add_argument("--play", type=int, default=20, help="questions played in the browser (default: %(default)s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure each source; returns the figures of the worst, and of each."""
    found = {}
    for source in args.sources:
        folder, _, start = source.partition(":")
        found[source] = _measure(folder, start, 100 if args.quick else args.questions, args)
    worst = {name: (max if name in _AT_MOST else min)(one[name] for one in found.values()) for name in _GOALS}
    met = all(worst[name] <= goal if name in _AT_MOST else worst[name] >= goal for name, goal in _GOALS.items())
    return {**worst, "goals": _GOALS, "met": met, "sources": found}


def _measure(source: str, start: str, count: int, args: argparse.Namespace) -> dict[str, Any]:
    began = time.process_time()
    made = find_questions(source, count=count, seed=args.seed, budget=CrawlBudget(), start=start)
    whole = time.process_time() - began
    drawing = made.cpu_s
    asked = made.questions
    base = _sqlite(made)
    rng = random.Random(args.seed)
    score, success = zip(*((one.proof["difficulty"]["score"], _solved(made, one, rng)) for one in asked), strict=True)
    with tempfile.TemporaryDirectory() as folder:
        path = write_questions(made, Path(folder))
        sample = rng.sample(range(len(asked)), min(args.play, len(asked)))
        oracle = asyncio.run(_play(path, [asked[number] for number in sample], sample)) if sample else 1.0
    by_level = defaultdict(list)
    for one, rate in zip(asked, success, strict=True):
        by_level[one.level].append(rate)
    return {
        "questions": len(asked),
        "questions_per_minute": round(60 * len(asked) / drawing),
        "with_reading_the_pages": round(60 * len(asked) / whole),
        "unique": _share(base.execute(one.proof["sql"]).fetchall() == [tuple(one.proof["row"])] for one in asked),
        "one_search": _one_search(made),
        "closed_book": _closed_book(made, base),
        "every_hop_needed": _share(_needed(one, base, made) for one in asked),
        "on_page": _share(_on_page(made, fact) for one in asked for fact in one.proof["facts"]),
        "oracle": oracle,
        "falls_with_difficulty": round(_spearman(score, success), 3),
        "success_by_level": {level: round(float(np.mean(own)), 3) for level, own in sorted(by_level.items())},
        "levels": {level: len(own) for level, own in sorted(by_level.items())},
        "hops": dict(sorted(Counter(len(one.chain) for one in asked).items())),
        "funnel": {"pages": made.funnel["pages"]["read"], "facts": made.funnel["facts"], **made.funnel["questions"]},
    }


def _share(rows: Any) -> float:
    rows = list(rows)
    return round(sum(rows) / len(rows), 4)


def _sqlite(made: QuestionSet) -> sqlite3.Connection:
    """Put the fact table into another engine."""
    base, kinds = sqlite3.connect(":memory:"), [one.kind for one in made.table.entities]
    base.create_function("starts_with", 2, lambda text, part: text.startswith(part), deterministic=True)
    base.execute("CREATE TABLE entities (id, name, kind)")
    base.executemany("INSERT INTO entities VALUES (?, ?, ?)",
                     [(one.number, normalise_value(one.name), one.kind) for one in made.table.entities])  # fmt: skip
    base.execute("CREATE TABLE facts (entity, kind, label, value, number, unit, target, target_kind)")
    base.executemany("INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [
        (one.entity, kinds[one.entity], one.label, one.value, *(one.quantity or (None, "")), one.target,
         kinds[one.target] if one.target >= 0 else -1) for one in made.table.facts
    ])  # fmt: skip
    for columns in ("label, value", "entity, label", "target, label", "label, number"):
        base.execute(f"CREATE INDEX by_{re.sub(r'[, ]+', '_', columns)} ON facts ({columns})")
    return base


def _needed(one: Question, base: sqlite3.Connection, made: QuestionSet) -> bool:
    """Tell whether each condition and each hop, when it is left out, leaves several answers."""
    kinds = [made.table.entities[number].kind for number in one.chain]
    without = [(len(one.chain), one.hops, [c for c in one.conditions if c is not out]) for out in one.conditions]
    without += [(hop.place + 1, one.hops[: hop.place], [c for c in one.conditions if c.place <= hop.place])
                for hop in one.hops]  # fmt: skip
    return all(base.execute(question_sql(*rest, one.ask, kinds, count=True)).fetchone()[0] > 1 for rest in without)


def _on_page(made: QuestionSet, fact: dict[str, Any]) -> bool:
    page = made.crawl.pages[fact["page"]]
    if fact["attribute"] == LINKS:
        names = {one.page: one.name for one in made.table.entities if one.form == "page"}
        return fact["value"] in {names.get(made.crawl.alias.get(link.target, "")) for link in page.links}
    return contains_text(f"{page.heading} {page.text}".casefold(), fact["value"].casefold())


class _Bm25:
    """Rank by BM25 (k1 1.5, b 0.75) over all words, cut to six letters."""

    def __init__(self, texts: list[str]) -> None:
        self._postings, lengths = defaultdict(list), []
        for number, text in enumerate(texts):
            words = Counter(self._words(text))
            lengths.append(sum(words.values()))
            for word, count in words.items():
                self._postings[word].append((number, count))
        self._norm = 1.5 * (0.25 + 0.75 * np.array(lengths) / np.mean(lengths))

    def first(self, query: str, count: int) -> list[int]:
        scores = np.zeros(len(self._norm))
        for word in sorted(set(self._words(query)) & self._postings.keys()):
            numbers, counts = np.array(self._postings[word]).T
            weight = math.log(1 + (len(scores) - len(numbers) + 0.5) / (len(numbers) + 0.5))
            scores[numbers] += weight * counts * 2.5 / (counts + self._norm[numbers])
        return np.argsort(-scores, kind="stable")[:count].tolist()

    @staticmethod
    def _words(text: str) -> list[str]:
        return [word[:6] for word in re.findall(r"\w+", text.casefold())]


def _one_search(made: QuestionSet) -> float:
    """Share of questions of which the first five hits hold the answer's page or its text."""
    pages = list(made.crawl.pages.values())
    index = _Bm25([f"{page.title} {page.text}" for page in pages])
    found = 0
    for one in made.questions:
        hits = [pages[number] for number in index.first(one.text, 5)]
        own = one.proof["way"][-1]
        found += any(page.address == own or contains_text(page.text.casefold(), answer.casefold())
                     for page in hits for answer in one.answers)  # fmt: skip
    return round(found / len(made.questions), 4)


def _closed_book(made: QuestionSet, base: sqlite3.Connection) -> float:
    """Share of questions that a guesser knows: the most frequent value of what is asked, of all entities of the kind or
    of those of the most telling condition; a word of the question; a name that many pages hold."""
    known = 0
    mentioned = Counter(link.text.casefold() for page in made.crawl.pages.values() for link in page.links)
    for one in made.questions:
        kind = made.table.entities[one.chain[0]].kind
        right = one.proof["row"][-1]
        if one.ask:
            sql = "SELECT value FROM facts WHERE kind = ? AND label = ? GROUP BY value ORDER BY count(*) DESC, value"
            guesses = {base.execute(f"{sql} LIMIT 1", (kind, one.ask)).fetchone()[0]}
            own = [other for other in one.conditions if other.place == 0]
            for other in own:
                answers = base.execute(question_sql(1, (), [other], one.ask, [kind])).fetchall()
                guesses.add(Counter(value for _, value in answers).most_common(1)[0][0])
        else:
            names = [made.table.entities[number].name for number in made.table.kinds[kind]]
            guesses = {normalise_value(max(names, key=lambda name: mentioned[name.casefold()]))}
        known += right in guesses or any(
            contains_text(one.text.casefold(), answer.casefold()) for answer in one.answers
        )
    return round(known / len(made.questions), 4)


def _solved(made: QuestionSet, one: Question, rng: random.Random) -> float:
    """Return the share of trials in which a solver of bounded skill gets the answer."""
    table, members = made.table, {}
    for other in one.conditions:
        if other.op == "between":
            members[other] = table.within(other.label, other.unit, other.low, other.high)
        elif other.op == "is":
            members[other] = table.with_value[other.label, other.value]
        else:
            members[other] = frozenset(
                n for (label, value), own in table.with_value.items()
                if label == other.label and value.startswith(other.value) for n in own
            )  # fmt: skip
    kinds = [frozenset(table.kinds[table.entities[number].kind]) for number in one.chain]
    clicks, right = one.proof["difficulty"]["clicks"], 0
    for _ in range(_TRIALS):
        here = None
        for place in reversed(range(len(one.chain))):
            left = kinds[place]
            if place < len(one.hops):
                hop = one.hops[place]
                if rng.random() < _FOLLOWED:
                    if hop.forward:
                        left = {fact.target for fact in table.of_entity.get(here, {}).get(hop.label, ())} & left
                    else:
                        left = table.pointing.get(here, {}).get(hop.label, frozenset()) & left
            for other in one.conditions:
                if other.place == place and rng.random() < _NOTICED:
                    left = left & members[other]
            here = rng.choice(sorted(left)) if left else None
            if here is None:
                break
        missed = rng.random() > _CLICKED**clicks
        if here is not None and not missed:
            said = {fact.value for fact in table.of_entity.get(here, {}).get(one.ask, ())} if one.ask else \
                {normalise_value(table.entities[here].name)}  # fmt: skip
            right += one.proof["row"][-1] in said
    return right / _TRIALS


def _spearman(left: Any, right: Any) -> float:
    def ranks(values: Any) -> np.ndarray:
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        return (ends - (counts - 1) / 2)[inverse]

    return float(np.corrcoef(ranks(left), ranks(right))[0, 1])


async def _play(path: Path, asked: list[Question], numbers: list[int]) -> float:
    """Play questions by their proofs in the browser; returns the share that is solved."""
    manifest = load_page_manifest(path)
    sandbox = {"browsers": 1, "pages": 1, "width": 1024, "height": 768, "timeout_s": 60}
    settings = parse_settings({"synthesis": {"manifests": [str(path)]}, "sandbox": sandbox}, where="the benchmark")
    names = list(manifest.variants)
    tasks = [make_page_task(manifest, names[number], 0, "train") for number in numbers]
    solved = 0
    async with open_environments(settings, tasks) as environments:
        for task, one in zip(tasks, asked, strict=True):
            async with environments.env(task) as env:
                await env.reset(task, 0)
                try:
                    result, _ = await play_proof(env, one.proof["way"], one.answers[0])
                    solved += result.info["score"] == 1.0
                except EnvError as error:
                    print(f"{task.template}: {error}")
    return round(solved / len(asked), 4)
