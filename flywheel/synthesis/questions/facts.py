"""Gather entities, attributes and values from a site's pages into a fact table (DuckDB).

An entity is a page, a section of a page that gives several (each with its own labels), or a row of a table. Entities
with like attributes are of one kind, and its name is the word that their names or the page that lists them share.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property

import duckdb
import pyarrow as pa

from flywheel.envs.suites.changes import normalise_text
from flywheel.synthesis.questions.crawl import Crawl
from flywheel.synthesis.questions.pages import LabelledValue, SitePage

FEWEST = 5  # entities that share a label, or are a kind
LINKS = "links to"  # label of the links between the pages of entities that stand under no label
_FUNCTIONAL = 0.95  # share of an attribute's entities with one value
_UNIT = r"[^\d\s.,:;/()<>-][^\d<>]{0,14}"
_NUMBER = re.compile(rf"([-+−]?(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+)?)(?:\s*({_UNIT}))?")
_WORDS = re.compile(r"\w+")


def parse_number(text: str) -> tuple[float, str] | None:
    """Parse `1,234.5 kg` to (1234.5, "kg"), `12` to (12.0, ""); None for anything else."""
    match = _NUMBER.fullmatch(text.strip())
    return (float(match[1].replace(",", "").replace("−", "-")), (match[2] or "").strip()) if match else None


def normalise_value(text: str) -> str:
    """Normalise a value for comparison: a number is its value and unit, a text loses case and runs of space."""
    if number := parse_number(text):
        return f"{number[0]:.12g} {number[1]}".strip().casefold()
    return normalise_text(text).strip(" .").casefold()


@dataclass
class Entity:
    """Hold an entity: what a page, a section of one or a table's row is about. form: page, section or row. name,
    full_name: without and with the word of its kind. kind: index of it; -1: of none."""

    number: int
    full_name: str
    page: str
    anchor: str
    form: str
    name: str = ""
    kind: int = -1


@dataclass(frozen=True)
class Fact:
    """Hold one value that an entity has under a label. value: normalised. shown: as on the page. target: the entity
    that it links to; -1: none. quantity: value and unit, where it is a number. by: who found it: rules, or language
    model."""

    entity: int
    label: str
    value: str
    shown: str
    page: str
    target: int = -1
    quantity: tuple[float, str] | None = None
    by: str = "rules"


@dataclass
class FactTable:
    """Hold the entities and facts of a site; an entity is named by its index. nouns: the word for each kind. funnel:
    counts of what was left out, by reason."""

    entities: list[Entity]
    facts: list[Fact]
    nouns: list[str]
    funnel: Counter[str] = field(default_factory=Counter)

    @cached_property
    def of_entity(self) -> dict[int, dict[str, list[Fact]]]:
        """Return the facts by entity and label."""
        found: dict[int, dict[str, list[Fact]]] = defaultdict(dict)
        for one in self.facts:
            found[one.entity].setdefault(one.label, []).append(one)
        return found

    @cached_property
    def with_value(self) -> dict[tuple[str, str], frozenset[int]]:
        """Return the entities by label and value."""
        found = defaultdict(set)
        for one in self.facts:
            found[one.label, one.value].add(one.entity)
        return {key: frozenset(own) for key, own in found.items()}

    @cached_property
    def pointing(self) -> dict[int, dict[str, frozenset[int]]]:
        """Return entity -> label -> the entities that link to it under the label."""
        found: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for one in self.facts:
            if one.target >= 0:
                found[one.target][one.label].add(one.entity)
        return {target: {label: frozenset(own) for label, own in by.items()} for target, by in found.items()}

    @cached_property
    def related(self) -> frozenset[tuple[int, int]]:
        """Return the pairs of entities, both ways round, of which one links to the other under a label."""
        told = {(one.entity, one.target) for one in self.facts if one.target >= 0 and one.label != LINKS}
        return frozenset(told | {(target, entity) for entity, target in told})

    @cached_property
    def by_quantity(self) -> dict[tuple[str, str], tuple[list[float], list[int]]]:
        """Return the numbers in rising order with their entities, by label and unit."""
        found = defaultdict(list)
        for one in self.facts:
            if one.quantity:
                found[one.label, one.quantity[1]].append((one.quantity[0], one.entity))
        return {key: tuple(map(list, zip(*sorted(own), strict=True))) for key, own in found.items()}

    def within(self, label: str, unit: str, low: float, high: float) -> frozenset[int]:
        """Return the entities whose number under `label`, in `unit`, is from `low` to `high`, both included.

        Raises KeyError where no entity has a number with that label and unit.
        """
        numbers, owners = self.by_quantity[label, unit]
        return frozenset(owners[bisect_left(numbers, low) : bisect_right(numbers, high)])

    @cached_property
    def kinds(self) -> list[list[int]]:
        """Return the entities of each kind."""
        found: list[list[int]] = [[] for _ in self.nouns]
        for one in self.entities:
            if one.kind >= 0:
                found[one.kind].append(one.number)
        return found

    @cached_property
    def functional(self) -> frozenset[tuple[int, str]]:
        """Return (kind, label) of the attributes with one value for nearly every entity that has them."""
        single, every = Counter(), Counter()
        for number, by_label in self.of_entity.items():
            for label, own in by_label.items():
                every[self.entities[number].kind, label] += 1
                single[self.entities[number].kind, label] += len({one.value for one in own}) == 1
        return frozenset(key for key, count in every.items() if single[key] >= _FUNCTIONAL * count)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Return a database in memory with the tables `entities` and `facts`, in which questions are proved."""
        connection = duckdb.connect(config={"threads": 1})
        made = {"entities": pa.table({
            "id": [one.number for one in self.entities],
            "name": [normalise_value(one.name) for one in self.entities],
            "kind": [one.kind for one in self.entities],
            "page": [one.page for one in self.entities],
        }), "facts": pa.table({
            "entity": [one.entity for one in self.facts],
            "kind": [self.entities[one.entity].kind for one in self.facts],
            "label": [one.label for one in self.facts],
            "value": [one.value for one in self.facts],
            "number": pa.array([one.quantity[0] if one.quantity else None for one in self.facts], pa.float64()),
            "unit": [one.quantity[1] if one.quantity else "" for one in self.facts],
            "target": [one.target for one in self.facts],
            "target_kind": [self.entities[one.target].kind if one.target >= 0 else -1 for one in self.facts],
            "page": [one.page for one in self.facts],
        })}  # fmt: skip
        for name, rows in made.items():
            connection.register("rows", rows)
            connection.execute(f"CREATE TABLE {name} AS FROM rows")
            connection.unregister("rows")
        return connection


def gather_facts(crawl: Crawl, more: dict[str, list[LabelledValue]] | None = None) -> FactTable:
    """Gather the facts of crawled pages into a table. more: address -> values that the language model found.

    Labels that fewer than `FEWEST` entities share, kinds that are smaller, sentences, links within a page, and what
    two pages tell differently of one attribute are left out and counted.
    """
    gathering = _Gathering(crawl)
    for address, page in crawl.pages.items():
        gathering.take(page, page.values, "rules")
        gathering.take(page, (more or {}).get(address, []), "language model")
    return gathering.finish()


class _Gathering:
    def __init__(self, crawl: Crawl) -> None:
        self.crawl, self.funnel = crawl, Counter()
        self.entities: list[Entity] = []
        self.known: dict[tuple[str, str], int] = {}
        self.rough: list[tuple[int, LabelledValue, str, str]] = []
        headings = Counter(page.heading for page in crawl.pages.values())
        common = {name for name, count in headings.items() if count > max(3, len(crawl.pages) // 20)}
        self.names = {
            address: page.title if page.heading in common or not page.heading else page.heading
            for address, page in crawl.pages.items()
        }

    def entity(self, page: str, anchor: str, name: str, form: str) -> int:
        """Return the number of an entity, which is made where it is not known."""
        if (page, anchor) not in self.known:
            self.known[page, anchor] = len(self.entities)
            self.entities.append(Entity(len(self.entities), normalise_text(name), page, anchor, form))
        return self.known[page, anchor]

    def take(self, page: SitePage, values: list[LabelledValue], by: str) -> None:
        sections = defaultdict(set)
        for one in values:
            if one.subject is None:
                sections[one.label].add(one.section)
        apart = {section for own in sections.values() if len(own) > 1 for section in own if section[1]}
        for one in values:
            if len(one.value.split()) > 3 and one.value.endswith((".", "!", "?")):
                self.funnel["sentences"] += 1
            elif one.links and all(link.target == page.address and link.anchor for link in one.links):
                self.funnel["links within the page"] += 1
            else:
                self.rough.append((self._subject(page, one, apart), one, page.address, by))

    def _subject(self, page: SitePage, one: LabelledValue, apart: set[tuple[str, str]]) -> int:
        if one.subject is not None:
            text, link = one.subject
            target = self.crawl.alias.get(link.target, "") if link else ""
            if target and target != page.address and not link.anchor:
                return self.entity(target, "", self.names[target], "page")
            return self.entity(page.address, f"row {text}", text, "row")
        if one.section in apart:
            return self.entity(page.address, one.section[0] or one.section[1], one.section[1], "section")
        return self.entity(page.address, "", self.names[page.address], "page")

    def finish(self) -> FactTable:
        self._drop_other_columns()
        sharing = defaultdict(set)
        for number, one, _, _ in self.rough:
            sharing[one.label].add(number)
        kept = [row for row in self.rough if len(sharing[row[1].label]) >= FEWEST]
        self.funnel["labels of too few entities"] += len(self.rough) - len(kept)
        labels = defaultdict(set)
        for number, one, _, _ in kept:
            labels[number].add(one.label)
        kinds = self._cluster({n: own for n, own in labels.items() if self.entities[n].form != "row" or len(own) > 1})
        facts: dict[tuple[int, str, str], Fact] = {}
        for number, one, page, by in kept:
            if self.entities[number].kind < 0:
                self.funnel["of no kind"] += 1
                continue
            for shown, target in self._values(one):
                key = (number, one.label, normalise_value(shown))
                before = facts.get(key)
                if before is None or (page == self.entities[number].page != before.page):
                    facts[key] = Fact(number, one.label, key[2], shown, page, target, parse_number(shown), by)
        nouns = self._name(kinds)
        self._point_by_name(facts)
        self._add_links(facts, nouns)
        table = FactTable(self.entities, list(facts.values()), nouns, self.funnel)
        return self._agreeing(table)

    def _drop_other_columns(self) -> None:
        """Leave out a table's column that tells most entities something else than their own pages do under its label:
        it means something else."""
        own = {
            (number, one.label): normalise_value(one.value)
            for number, one, page, _ in self.rough
            if self.entities[number].page == page
        }
        agreeing: dict[tuple[str, str], list[bool]] = defaultdict(list)
        for number, one, page, _ in self.rough:
            if self.entities[number].page != page and (number, one.label) in own:
                agreeing[page, one.label].append(own[number, one.label] == normalise_value(one.value))
        wrong = {key for key, told in agreeing.items() if len(told) >= FEWEST and 2 * sum(told) < len(told)}
        kept = [
            row for row in self.rough if self.entities[row[0]].page == row[2] or (row[2], row[1].label) not in wrong
        ]
        self.funnel["columns that mean something else"] += len(self.rough) - len(kept)
        self.rough = kept

    def _point_by_name(self, facts: dict[tuple[int, str, str], Fact]) -> None:
        """Let a text that names an entity point to it, where most values of its label name entities of that kind."""
        named = defaultdict(list)
        for one in self.entities:
            if one.kind >= 0 and len(one.name) > 3:
                named[normalise_value(one.name)].append(one)
        found, every = defaultdict(list), Counter()
        for key, one in facts.items():
            every[self.entities[one.entity].kind, one.label] += 1
            own = named.get(one.value, ())
            if one.target < 0 and len(own) == 1 and own[0].number != one.entity:
                found[self.entities[one.entity].kind, one.label, own[0].kind].append((key, own[0].number))
        for (kind, label, _), own in found.items():
            for key, number in own if 2 * len(own) >= every[kind, label] else ():
                facts[key] = replace(facts[key], target=number)

    def _add_links(self, facts: dict[tuple[int, str, str], Fact], nouns: list[str]) -> None:
        """Add the links between the pages of entities, but for pages that a fifth of all link to.

        A kind that is called by no word of its own has none: other pages of the site, which are no entities, link too.
        """
        owners = {one.page: one.number for one in self.entities if one.kind >= 0 and one.form == "page"}
        linked = [
            (number, owners[target], page)
            for page, number in owners.items()
            if nouns[self.entities[number].kind] != "page"
            for target in dict.fromkeys(self.crawl.alias.get(link.target, "") for link in self.crawl.pages[page].links)
            if target in owners and target != page
        ]
        every = Counter(target for _, target, _ in linked)
        for number, target, page in linked:
            if every[target] <= len(owners) / 5:
                name = self.entities[target].name
                value = normalise_value(name)
                facts[number, LINKS, value] = Fact(number, LINKS, value, name, page, target)

    def _values(self, one: LabelledValue) -> list[tuple[str, int]]:
        """Split a value of links alone into these; a text is one value."""
        found = []
        for link in one.links if one.all_links else ():
            target = self.crawl.alias.get(link.target, "")
            place = next((at for at in ((target, link.anchor), (target, "")) if at in self.known), None)
            kind = self.entities[self.known[place]].kind if place else -1
            found.append((link.text, self.known[place] if place and kind >= 0 else -1))
        return [pair for pair in found if pair[0]] or [(one.value, -1)]

    def _cluster(self, labels: dict[int, set[str]]) -> list[list[int]]:
        """Sort the entities into kinds: those that share at least half of their labels with a kind's most."""
        signatures = defaultdict(list)
        for number, own in sorted(labels.items()):
            signatures[self.entities[number].form, frozenset(own)].append(number)
        kinds: list[tuple[str, Counter[str], list[int]]] = []
        for (form, own), members in sorted(signatures.items(), key=lambda one: (-len(one[1]), one[1])):
            best, score = None, 0.5
            for kind in kinds:
                core = {label for label, count in kind[1].items() if 2 * count >= len(kind[2])}
                near = len(core & own) / len(core | own)
                if kind[0] == form and near >= score:
                    best, score = kind, near + 1e-9
            if best is None:
                best = (form, Counter(), [])
                kinds.append(best)
            best[1].update(dict.fromkeys(own, len(members)))
            best[2].extend(members)
        found = [sorted(kind[2]) for kind in kinds if len(kind[2]) >= FEWEST]
        for number, members in enumerate(found):
            for one in members:
                self.entities[one].kind = number
        return found

    def _name(self, kinds: list[list[int]]) -> list[str]:
        """Name the entities without the words that all of a kind share, and return what each kind is called.

        That is the word that their names end with, or the words that they begin with; what a page that lists them is
        headed by; what their texts say that they are; else their form, of rows with the page of their table.
        """
        nouns = []
        for members in kinds:
            ones = [self.entities[number] for number in members]
            names = [one.full_name for one in ones]
            last, first = _shared_word(names, -1), []
            while len(first) < 3 and (word := _shared_word(names, len(first))):
                first.append(word)
            for one in ones:
                name = one.full_name.removesuffix(f" {last}") if last else one.full_name
                name = name.removeprefix(f"{' '.join(first)} ") if first else name
                one.name = re.sub(r"\s*\(.*\)$", "", name) or one.full_name
            shared = [last] if last.isalpha() else first
            if shared and all(word.isalpha() for word in shared):
                nouns.append(" ".join([*shared[:-1], shared[-1].lower()]))
            elif ones[0].form == "page":
                nouns.append(self._listed(ones) or self._said(ones) or "page")
            else:
                nouns.append("section" if ones[0].form == "section" else self._row(ones))
        return nouns

    def _row(self, ones: list[Entity]) -> str:
        """Call rows by the page that has their table, where one has most of them: a table row may lie anywhere."""
        page, count = Counter(one.page for one in ones).most_common(1)[0]
        heading = self.crawl.pages[page].heading
        if not heading or count < 0.8 * len(ones):
            return "table row"
        return f"row of the table on “{heading}”"

    def _listed(self, ones: list[Entity]) -> str:
        pages = {one.page for one in ones}
        every = {one.page for one in self.entities if one.kind >= 0 and one.form == "page"}
        linked = defaultdict(set)
        for page in self.crawl.pages.values():
            if re.fullmatch(r"[A-Z][a-z]+s( [a-z]+s)?", page.heading):
                linked[page.heading].update(self.crawl.alias.get(link.target, "") for link in page.links)
        for heading, targets in sorted(linked.items()):
            own = targets & every
            if len(own & pages) >= 0.8 * max(len(pages), len(own)):
                return re.sub(r"(?<=[^aeiou])ies$", "y", heading.lower()).removesuffix("s")
        return ""

    def _said(self, ones: list[Entity]) -> str:
        said = Counter()
        for one in ones:
            text = self.crawl.pages[one.page].text
            match = re.search(
                rf"{re.escape(one.name)} is an? ((?:[a-z]+ ){{0,2}}?[a-z]+) (?:in|of|that|which|with|for)\b", text
            )
            said[match[1] if match else ""] += 1
        word, count = said.most_common(1)[0]
        return word if 2 * count >= len(ones) else ""

    def _agreeing(self, table: FactTable) -> FactTable:
        """Leave out both sides of a contradiction: two values where nearly all others have one."""
        wrong = {
            (number, label)
            for number, by_label in table.of_entity.items()
            for label, own in by_label.items()
            if (self.entities[number].kind, label) in table.functional and len({one.value for one in own}) > 1
        }
        facts = [one for one in table.facts if (one.entity, one.label) not in wrong]
        self.funnel["contradictory facts"] += len(table.facts) - len(facts)
        return FactTable(self.entities, facts, table.nouns, self.funnel)


def _shared_word(names: list[str], place: int) -> str:
    """Return the first or last word that four fifths of names of several words share; "" where there is none."""
    words = [own for name in names if len(own := name.split()) > max(1, place + 1)]
    word, count = Counter(own[place] for own in words).most_common(1)[0] if words else ("", 0)
    return word if count >= 0.8 * len(names) else ""
