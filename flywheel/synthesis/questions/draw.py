"""Draw questions over a fact table: entities in a chain of links, with vague conditions, and prove each by a query."""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from flywheel.synthesis.questions.crawl import Crawl
from flywheel.synthesis.questions.facts import LINKS, Fact, FactTable, normalise_value
from flywheel.synthesis.questions.search import PageIndex, contains_text
from flywheel.synthesis.questions.wording import Condition, Hop, word_question

SHARED = 3  # entities that fulfil each condition, at least: one that fewer fulfil reveals them
HITS = 5  # of one search, in which neither the answer's page nor its text may be
_MORE_HITS = (10, 20)  # at least and at most so many are looked at, of few and many pages: others rank otherwise
_LONGEST = 4  # entities of a chain
_FEW = 10  # values of which a guess may hit one
_MOST_CONDITIONS = 4  # of one entity
_MOST_SHARE = 0.2  # of the most frequent value of an attribute that is asked for
_DRY = 600  # draws of which only one is a question: the facts are taken to be used up
_LEVELS = (2.5, 3.2, 3.5, 4.5)  # scores of difficulty from which on a question is of level 2, 3, 4, 5
_STEPS = tuple(base * 10.0**power for power in range(-3, 10) for base in (1, 2, 5))  # widths of ranges

_Chosen = tuple[Condition, frozenset[int]]  # a condition, and the entities that fulfil it


@dataclass(frozen=True)
class AttributeScore:
    """Hold how far the values of an attribute give away their entity. entities, values: numbers of these. shared: mean
    number of entities with one value. found: share of the values for which one search finds the page. use: in words,
    how conditions on it are made."""

    kind: str
    label: str
    entities: int
    values: int
    shared: float
    found: float
    use: str


@dataclass(frozen=True)
class Question:
    """Hold a proved question. answers: texts that count as right. ask: the label that is asked for; "": the name.
    chain: entities, the asked one first. proof: `sql`, `row`, `needed`, `facts`, `way` (addresses of pages) and
    `difficulty`."""

    text: str
    answers: tuple[str, ...]
    ask: str
    chain: tuple[int, ...]
    hops: tuple[Hop, ...]
    conditions: tuple[Condition, ...]
    proof: dict[str, Any]
    level: int
    max_steps: int


class QuestionDrawer:
    """Draw questions over the facts of a site. seed: of all choices. funnel: counts what was drawn and discarded, by
    reason. scores: of the attributes."""

    def __init__(self, crawl: Crawl, table: FactTable, seed: int) -> None:
        self.crawl, self.table, self.funnel = crawl, table, Counter()
        self._rng = random.Random(seed)
        self.index = PageIndex({address: (page.title, page.text) for address, page in crawl.pages.items()})
        self._base = table.connect()
        self._depth = max(_MORE_HITS[0], min(_MORE_HITS[1], len(crawl.pages) // 80))
        self._links = {
            address: dict.fromkeys(to for link in page.links if (to := crawl.alias.get(link.target)) and to != address)
            for address, page in crawl.pages.items()
        }
        self._inbound = Counter(target for targets in self._links.values() for target in targets)
        self._way = lru_cache(10_000)(self._shortest_way)
        self._measured: set[tuple[int, str]] = (
            set()
        )  # attributes of numbers alone: a range leaves out no other spelling
        self.scores = [self._score(kind, label) for kind, label in self._attributes()]
        self._revealing = {(one.kind, one.label) for one in self.scores if one.use == "left out: revealing"}
        self._asked = self._what_is_asked()
        self._used: Counter[tuple[int, str]] = Counter()
        self._lengths: Counter[int] = Counter()
        self._tried: set[tuple[Any, ...]] = set()

    # -- attributes ---------------------------------------------------------------------------------------------------
    def _attributes(self) -> list[tuple[int, str]]:
        found = Counter()
        for number, by_label in self.table.of_entity.items():
            found.update((self.table.entities[number].kind, label) for label in by_label)
        return sorted(key for key, count in found.items() if count >= SHARED)

    def _facts(self, kind: int, label: str) -> list[Fact]:
        own = (self.table.of_entity.get(number, {}).get(label, []) for number in self.table.kinds[kind])
        return [fact for facts in own for fact in facts]

    def _score(self, kind: int, label: str) -> AttributeScore:
        facts, noun = self._facts(kind, label), self.table.nouns[kind]
        values = Counter(fact.value for fact in facts)
        sample = facts[:: max(1, len(facts) // 12)][:12]
        pages = self.table.entities
        found = sum(pages[one.entity].page in self.index.first(f"{noun} {label} {one.shown}", HITS) for one in sample)
        shared, rate = len(facts) / len(values), found / len(sample)
        units = Counter(fact.quantity[1] for fact in facts if fact.quantity)
        numbers = bool(units) and max(units.values()) >= 0.98 * len(facts)
        if numbers:
            self._measured.add((kind, label))
        use = "as it is" if shared >= SHARED else "made a range" if numbers else "made vaguer"
        if shared < 1.5 and not numbers and rate > 0.5 and not self._prefixes(kind, label):
            use = "left out: revealing"
        return AttributeScore(noun, label, len({one.entity for one in facts}), len(values), shared, rate, use)

    @lru_cache(4096)  # noqa: B019  one object for one command
    def _prefixes(self, kind: int, label: str) -> Mapping[str, frozenset[int]]:
        """Return the beginnings of values of several parts (`Africa/` of Africa/Lagos) that enough entities share."""
        found: dict[str, set[int]] = {}
        for fact in self._facts(kind, label):
            if prefix := _beginning(fact.value):
                found.setdefault(prefix, set()).add(fact.entity)
        most = len(self.table.kinds[kind]) / 2
        return {prefix: frozenset(own) for prefix, own in found.items() if SHARED <= len(own) <= most}

    def _what_is_asked(self) -> dict[int, list[str]]:
        """List what can be asked of each entity: labels, and "" for its name."""
        found: dict[int, list[str]] = {}
        for kind, label in self._attributes():
            facts = self._facts(kind, label)
            values = Counter(fact.value for fact in facts)
            rare = len(values) >= 5 and values.most_common(1)[0][1] <= _MOST_SHARE * len(facts)
            if (kind, label) in self.table.functional and rare and label != LINKS:
                for number in sorted({fact.entity for fact in facts}):
                    found.setdefault(number, []).append(label)
        names = Counter(normalise_value(one.name) for one in self.table.entities)
        for one in self.table.entities:
            if one.kind >= 0 and names[normalise_value(one.name)] == 1:
                found.setdefault(one.number, []).append("")
        return found

    # -- drawing ------------------------------------------------------------------------------------------------------
    def draw(self) -> Iterator[Question]:
        """Yield questions until the facts give hardly any more."""
        first = [
            [one for one in own if any(self._alone(0, one, None, set()) for _ in range(3))] for own in self.table.kinds
        ]
        first = [own for own in first if own]
        weights = [math.sqrt(len(own)) for own in first]
        recent = deque([True] * _DRY, maxlen=_DRY)
        while first and self._asked and sum(recent) > 1:
            self.funnel["drawn"] += 1
            made = self._attempt(self._rng.choice(self._rng.choices(first, weights)[0]))
            recent.append(not isinstance(made, str))
            if isinstance(made, str):
                self.funnel[made] += 1
            else:
                yield made

    def _attempt(self, first: int) -> Question | str:
        chain, hops = self._chain(first)
        asked, kind = chain[0], self.table.entities[chain[0]].kind
        asks = [label for label in self._asked.get(asked, ()) if not hops or label != hops[0].label]
        if hops and hops[0].forward and "" in asks:
            asks.remove("")  # the name of what a page names is read there
        if not asks:
            return "nothing to ask"
        ask = self._rng.choice(asks)
        found = self._conditions(chain, hops, ask)
        if found is None:
            return "not unique"
        conditions = [one for one, _ in found]
        names = self.table.entities
        fact = self.table.of_entity[asked][ask][0] if ask else None
        asked_so = (chain, hops, frozenset(conditions), ask)
        if asked_so in self._tried:
            return "near-duplicate: drawn before"
        self._tried.add(asked_so)
        answers = (fact.shown,) if fact else tuple(dict.fromkeys((names[asked].name, names[asked].full_name)))
        if fact and fact.quantity and fact.quantity[1]:
            answers += (f"{fact.quantity[0]:.12g}",)
        if self._used[asked, ask] >= 3:
            return "near-duplicate: asked before"
        value = fact.value if fact else normalise_value(names[asked].name)
        told = {one.value for other in chain[1:] for one in self.table.of_entity[other].get(ask, ())}
        if value in told | {normalise_value(names[other].name) for other in chain[1:]}:
            return "a hop is not needed"
        if self._guessed(kind, ask, value, found):
            return "closed book"
        text = self._word(chain, hops, conditions, ask, fact)
        if any(contains_text(text.casefold(), one.casefold()) for one in answers):
            return "closed book"
        page = fact.page if fact else names[asked].page
        for every in (False, True):
            hits = self.index.first(text, self._depth, every)
            if page in hits or any(self.index.holds(hit, one) for hit in hits for one in answers):
                return "one search"
        proof = self._prove(chain, hops, conditions, ask, value)
        if isinstance(proof, str):
            return proof
        way = self._walk(chain, page)
        if way is None:
            return "not reachable by links"
        self._used[asked, ask] += 1
        self._lengths[len(chain)] += 1
        clicks = len(way) - 1
        # What a hop or a condition weighs is the share of readers who go wrong without it.
        score = round(sum(1 - 1 / one["answers"] for one in proof["needed"]) + clicks / 8, 3)
        level = 1 + sum(score >= edge for edge in _LEVELS)
        difficulty = {"hops": len(chain), "conditions": len(conditions), "clicks": clicks, "score": score}
        evidence = self._evidence(chain, hops, conditions, fact)
        proof |= {"facts": evidence, "way": way, "difficulty": difficulty}
        # Twelve steps for each page, and a scroll for every 500 characters: long pages are read to their end.
        steps = 15 + sum(12 + len(self.crawl.pages[one].text) // 500 for one in way)
        return Question(text, answers, ask, chain, hops, tuple(conditions), proof, level, steps)

    def _chain(self, first: int) -> tuple[tuple[int, ...], tuple[Hop, ...]]:
        """Walk over links from the entity that a question begins with; return entities and hops, the last first."""
        chain, ways, functional, names = [first], [], self.table.functional, self.table.entities
        # Two of three are of the length that there are fewest of: long chains are seldom without fault.
        fewest = min(range(1, _LONGEST + 1), key=lambda length: self._lengths[length])
        length = self._rng.choice((fewest, fewest, self._rng.randint(1, _LONGEST)))
        while len(chain) < length:
            here = chain[-1]
            options: dict[tuple[str, bool], list[int]] = {}
            for label, facts in self.table.of_entity[here].items():
                if (names[here].kind, label) in functional and facts[0].target >= 0:
                    options[label, True] = [facts[0].target]
            for label, owners in self.table.pointing.get(here, {}).items():
                options[label, False] = sorted(owners)
            options = {
                key: kept
                for key, own in options.items()
                if (kept := [one for one in own if one not in chain and self._tells(key[0], here, one)])
            }
            if not options:
                break
            label, forward = self._rng.choice(sorted(options))
            after = self._rng.choice(options[label, forward])
            owner = here if forward else after
            ways.append((label, forward, (names[owner].kind, label) not in functional))
            chain.append(after)
        hops = tuple(Hop(place, *way) for place, way in enumerate(reversed(ways)))
        return tuple(reversed(chain)), hops

    def _tells(self, label: str, number: int, other: int) -> bool:
        """Tell whether a link says more than a label that relates the two entities already."""
        return label != LINKS or (number, other) not in self.table.related

    def _conditions(self, chain: tuple[int, ...], hops: tuple[Hop, ...], ask: str) -> list[_Chosen] | None:
        """Choose conditions that leave each entity of the chain alone, none needless; None where there are none."""
        found: list[_Chosen] = []
        for place in reversed(range(len(chain))):
            base: frozenset[int] | None = None
            if place < len(hops):
                hop = hops[place]
                base = frozenset(chain[place : place + 1])
                if not hop.forward:
                    base = self.table.pointing[chain[place + 1]][hop.label]
            taken = {ask} if not place else set()
            taken |= {hops[place].label} if place < len(hops) and not hops[place].forward else set()
            taken |= {hops[place - 1].label} if place and hops[place - 1].forward else set()
            own = self._alone(place, chain[place], base, taken)
            if own is None:
                return None
            found += own
        return found

    def _alone(self, place: int, number: int, base: frozenset[int] | None, taken: set[str]) -> list[_Chosen] | None:
        left, chosen = base, []
        if left is not None and len(left) == 1:
            return []
        labels = [label for label in sorted(self.table.of_entity.get(number, {})) if label not in taken]
        self._rng.shuffle(labels)
        for label in labels:
            vague = self._vague(place, number, label)
            if vague is None:
                continue
            smaller = vague[1] if left is None else left & vague[1]
            if left is None or len(smaller) < len(left):
                left, chosen = smaller, [*chosen, vague]
            if len(left) == 1:
                break
        if left is None or len(left) > 1:
            return None
        for one in list(chosen):  # a later one may have made an earlier one needless
            rest = [other[1] for other in chosen if other is not one] + ([base] if base is not None else [])
            if rest and len(frozenset.intersection(*rest)) == 1:
                chosen.remove(one)
        return chosen if len(chosen) <= _MOST_CONDITIONS else None

    def _vague(self, place: int, number: int, label: str) -> _Chosen | None:
        """Make a condition of an attribute that at least `SHARED` entities fulfil; None where it would reveal."""
        entity, facts = self.table.entities[number], self.table.of_entity[number][label]
        kind, members = entity.kind, self.table.kinds[entity.kind]
        facts = [one for one in facts if self._tells(label, number, one.target)]
        if not facts:
            return None
        fact = self._rng.choice(facts)
        if (self.table.nouns[kind], label) in self._revealing:
            return None
        many = (kind, label) not in self.table.functional
        if fact.quantity and not many and (kind, label) in self._measured:
            return self._range(place, label, fact, len(members))
        own = self.table.with_value[label, fact.value]
        if SHARED <= len(own) <= 0.6 * len(members) and not contains_text(fact.value, normalise_value(entity.name)):
            return Condition(place, label, "is", fact.value, fact.shown, many=many), own
        prefix = _beginning(fact.value)
        if not many and prefix in self._prefixes(kind, label):
            own = frozenset(
                number for (name, value), owners in self.table.with_value.items()
                if name == label and value.startswith(prefix) for number in owners
            )  # fmt: skip
            return Condition(place, label, "begins", prefix, fact.shown[: len(prefix)]), own
        return None

    def _range(self, place: int, label: str, fact: Fact, count: int) -> _Chosen | None:
        number, unit = fact.quantity
        own = self.table.with_value[label, fact.value]
        numbers = self.table.by_quantity[label, unit][0]
        if len(own) >= SHARED and len(own) * 3 <= count:
            return Condition(place, label, "is", fact.value, fact.shown), own
        whole, span, fits = all(one == int(one) for one in numbers), numbers[-1] - numbers[0], []
        for step in (one for one in _STEPS if 3 * one <= span and (one >= 1 or not whole)):
            low = math.floor(number / step + 1e-9) * step
            own = self.table.within(label, unit, low - step * 1e-9, low + step * (1 + 1e-9))
            if len(own) > 0.5 * count:
                break
            if len(own) >= SHARED:
                fits.append((low, low + step, own))
        if not fits:
            return None
        low, high, own = self._rng.choice(fits)
        grouped = "," in fact.shown or high >= 10_000
        return Condition(place, label, "between", low=low, high=high, unit=unit, grouped=grouped), own

    def _guessed(self, kind: int, ask: str, value: str, found: list[_Chosen]) -> bool:
        """Tell whether who knows the site's frequencies alone would guess the answer: the most frequent value of the
        attribute, of all entities or of those that fulfil one condition; of names those that most pages link to."""
        members = frozenset(self.table.kinds[kind])
        if not ask:
            most = sorted(members, key=lambda one: (-self._inbound[self.table.entities[one].page], one))[:3]
            return value in {normalise_value(self.table.entities[one].name) for one in most}
        groups = [members, *(members & own for one, own in found if one.place == 0)]
        return any(value in self._most_frequent(ask, own) for own in groups)

    @lru_cache(4096)  # noqa: B019  one object for one command
    def _most_frequent(self, label: str, members: frozenset[int]) -> frozenset[str]:
        facts = (fact for one in members for fact in self.table.of_entity.get(one, {}).get(label, ()))
        values = Counter(fact.value for fact in facts)
        most = max(values.values(), default=0)
        return frozenset(value for value, count in values.items() if count == most and (most > 1 or len(values) < _FEW))

    def _word(self, chain: tuple[int, ...], hops: tuple[Hop, ...], conditions: list[Condition], ask: str, fact) -> str:
        ones = [self.table.entities[one] for one in chain]
        nouns = [self.table.nouns[one.kind] for one in ones]
        if any(one.form == "row" for one in ones):  # a row has columns: its labels stand in quotation marks

            def told(place: int, label: str) -> str:
                return f"“{label}”" if label and ones[place].form == "row" else label

            conditions = [replace(one, label=told(one.place, one.label)) for one in conditions]
            hops = tuple(replace(hop, label=told(hop.place + hop.forward, hop.label)) for hop in hops)
            ask = told(0, ask)
        if fact is None:
            hint = "answer with the name alone."
        elif fact.quantity:
            hint = "answer with the number" + (" and its unit." if fact.quantity[1] else ".")
        else:
            hint = "answer as the page gives it."
        return word_question(nouns, list(hops), conditions, ask, f"Go by these pages alone; {hint}")

    # -- proof --------------------------------------------------------------------------------------------------------
    def _prove(
        self, chain: tuple[int, ...], hops: tuple[Hop, ...], conditions: list[Condition], ask: str, value: str
    ) -> dict[str, Any] | str:
        """Prove by queries that there is one answer, and that without any hop or condition there are more."""
        kinds = [self.table.entities[one].kind for one in chain]
        sql = question_sql(len(chain), hops, conditions, ask)
        rows = self._base.execute(sql).fetchmany(2)
        if rows != [(*chain, value)]:
            return "not unique"
        dropped = []
        for number, one in enumerate(conditions):
            rest = [other for place, other in enumerate(conditions) if place != number]
            dropped.append((f"condition on {one.label}", (len(chain), hops, rest, ask, kinds)))
        for hop in hops:
            kept = [one for one in conditions if one.place <= hop.place]
            dropped.append((f"hop by {hop.label}", (hop.place + 1, hops[: hop.place], kept, ask, kinds)))
        left = []
        for what, asked in dropped:
            count = self._base.execute(question_sql(*asked, count=True)).fetchone()[0]
            if count < 2:
                return "a hop is not needed" if what.startswith("hop") else "a condition is not needed"
            left.append({"without": what, "answers": count})
        return {"sql": sql, "row": [*chain, value], "needed": left}

    def _evidence(self, chain, hops, conditions, fact) -> list[dict[str, Any]]:
        """List the facts that the answer follows from, in the order in which they are read."""
        names, found = self.table.entities, []

        def tell(number: int, one: Fact) -> None:
            found.append({"entity": names[number].name, "attribute": one.label, "value": one.shown, "page": one.page}
                         | ({"by": one.by} if one.by != "rules" else {}))  # fmt: skip

        for place in reversed(range(len(chain))):
            for one in conditions:
                if one.place == place:
                    own = self.table.of_entity[chain[place]][one.label]
                    tell(chain[place], next((f for f in own if f.value == one.value), own[0]))
            if place:
                hop = hops[place - 1]
                owner, target = (chain[place], chain[place - 1]) if hop.forward else (chain[place - 1], chain[place])
                tell(owner, next(f for f in self.table.of_entity[owner][hop.label] if f.target == target))
        if fact:
            tell(chain[0], fact)
        return found

    # -- the way through the pages ------------------------------------------------------------------------------------
    def _walk(self, chain: tuple[int, ...], page: str) -> list[str] | None:
        """Return the pages that links lead over, from the start over each entity's page to the answer's."""
        way = [self.crawl.start]
        for stop in [*(self.table.entities[one].page for one in reversed(chain)), page]:
            part = self._way(way[-1], stop)
            if part is None:
                return None
            way += part[1:]
        return way

    def _shortest_way(self, begin: str, end: str) -> tuple[str, ...] | None:
        before, waiting = {begin: ""}, deque([begin])
        while waiting and end not in before:
            page = waiting.popleft()
            for target in self._links[page]:
                if target in self._links and target not in before:
                    before[target] = page
                    waiting.append(target)
        if end not in before:
            return None
        way = [end]
        while before[way[-1]]:
            way.append(before[way[-1]])
        return tuple(reversed(way))


def _beginning(value: str) -> str:
    """Return the first part of a value of several: `africa/` of africa/lagos; "" where there is one."""
    place = min((at for mark in "/:(" if (at := value.find(mark)) > 1), default=-1)
    return value[: place + 1].rstrip("( ") if 1 < place < len(value) - 1 else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def question_sql(
    entities: int,
    hops: tuple[Hop, ...],
    conditions: list[Condition],
    ask: str,
    kinds: list[int] | None = None,
    count: bool = False,
) -> str:
    """Write a question as an SQL query over the tables `entities` and `facts` (`FactTable.connect`).

    entities: their number in the chain; each must be named by a hop, a condition or what is asked. ask: a label; "":
    the name. kinds: of the entities, where they are conditions too. count: select the number of answers, not the
    distinct rows of entities and answer.
    """
    tables, where, at = [], [], [[] for _ in range(entities)]

    def fact(name: str, owner: int, label: str, target: int | None = None) -> None:
        tables.append(f"facts {name}")
        where.append(f"{name}.label = {_quoted(label)}")
        at[owner].append((f"{name}.entity", f"{name}.kind"))
        if target is not None:
            at[target].append((f"{name}.target", f"{name}.target_kind"))

    for number, one in enumerate(conditions):
        fact(f"c{number}", one.place, one.label)
        if one.op == "between":
            where.append(f"c{number}.number BETWEEN {one.low:.12g} AND {one.high:.12g}")
            where.append(f"c{number}.unit = {_quoted(one.unit)}")
        elif one.op == "begins":
            where.append(f"starts_with(c{number}.value, {_quoted(one.value)})")
        else:
            where.append(f"c{number}.value = {_quoted(one.value)}")
    for hop in hops:
        owner, target = (hop.place + 1, hop.place) if hop.forward else (hop.place, hop.place + 1)
        fact(f"h{hop.place}", owner, hop.label, target)
    if ask:
        fact("a", 0, ask)
    else:
        tables.append("entities n")
        at[0].append(("n.id", "n.kind"))
    for place, own in enumerate(at):
        where += [f"{own[0][0]} = {name}" for name, _ in own[1:]]
        where += [f"{own[0][1]} = {kinds[place]}"] if kinds else []
    answer = "a.value" if ask else "n.name"
    ids = ", ".join(own[0][0] for own in at)
    what = f"count(DISTINCT {answer})" if count else f"DISTINCT {ids}, {answer}"
    return f"SELECT {what} FROM {', '.join(tables)} WHERE {' AND '.join(where) or 'true'}"
