"""Word a drawn question in plain sentences, by rules."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flywheel.synthesis.questions.facts import LINKS

_NO_NOUN = re.compile(
    r"\b(since|inherit(s|ed)|extends|implements|requires|provides|uses|contains|includes|supports|depends|also|needs|"
    r"returns|throws|overrides|replaces|conflicts|suggests|recommends|before|after|until|example|note|"
    r"(in|by|of|to|from|at|on|with|for|as)$)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Condition:
    """Hold one condition on an entity: its `label` is `value`, or begins with it, or is from `low` to `high`.

    place: of the entity in the question's chain. op: is, begins or between. shown: the value as on the page. grouped:
    whether numbers are written with commas at the thousands. many: whether the label has several values.
    """

    place: int
    label: str
    op: str
    value: str = ""
    shown: str = ""
    low: float = 0.0
    high: float = 0.0
    unit: str = ""
    grouped: bool = False
    many: bool = False

    @property
    def literals(self) -> tuple[str, ...]:
        """Return the texts that any wording of the condition must contain."""
        if self.op == "between":
            return format_number(self.low, self.grouped), format_number(self.high, self.grouped)
        return (self.shown,)


@dataclass(frozen=True)
class Hop:
    """Hold the link between the entities at `place` and `place + 1` of a question's chain.

    forward: whether the second links to the first under `label`; else the first links to the second. many: whether the
    label has several values.
    """

    place: int
    label: str
    forward: bool
    many: bool


def format_number(value: float, grouped: bool) -> str:
    """Write a number without needless digits; grouped: with commas at the thousands."""
    text = f"{value:,.10g}" if grouped else f"{value:.10g}"
    return f"{int(value):,}" if grouped and value == int(value) else text


def is_noun(label: str) -> bool:
    """Tell whether a label can stand in a sentence as a noun: population, but not Inherits or Discovered in."""
    words = label.split()
    last = words[-1].lower()
    if last == "name":  # “the city whose name is …” says how the city itself is called
        return False
    if not re.fullmatch(r"[A-Z][A-Za-z]*( [A-Za-z]+){0,3}", label) or _NO_NOUN.search(label):
        return False
    plural = last.endswith("s") and not last.endswith(("ss", "us", "is", "series"))
    return not last.endswith(("ed", "ing", "ly")) and not plural


def quote_label(label: str) -> str:
    """Write a label in quotation marks, once if it has them already."""
    return f"“{label.strip('“”')}”"


def name_label(label: str) -> str:
    """Write a label within a sentence: `population`, or `“Inherits” entry`."""
    if not is_noun(label):
        return f"{quote_label(label)} entry"
    return label.lower() if re.fullmatch(r"[A-Z]?[a-z]+( [A-Za-z]?[a-z]+)*", label) else label


def quote_value(text: str) -> str:
    """Write a value within a sentence: a number or name as it is, anything else in quotation marks."""
    plain = re.fullmatch(r"[A-Z][\w'’-]*( [A-Z][\w'’-]*){0,3}|[-\d.,]+", text)
    return text if plain else f"“{text}”"


def word_condition(one: Condition) -> str:
    """Write a condition as a clause that begins with `whose`."""
    if one.label == LINKS:
        return f"whose page links to that of {quote_value(one.shown)}"
    if one.many and re.fullmatch(r"[-\d.,]+", one.shown):  # a number is no member of a list
        return f"one of whose {quote_label(one.label)} entries is {one.shown}"
    if one.many:
        return f"whose {quote_label(one.label)} list includes {quote_value(one.shown)}"
    label = name_label(one.label)
    if one.op == "between":
        unit = f" {one.unit}" if one.unit else ""
        low, high = one.literals
        return f"whose {label} is between {low} and {high}{unit}"
    return f"whose {label} " + (f"begins with “{one.shown}”" if one.op == "begins" else f"is {quote_value(one.shown)}")


def join_clauses(clauses: list[str]) -> str:
    """Join clauses by commas, the last by `and`."""
    return " and ".join(filter(None, (", ".join(clauses[:-1]), clauses[-1]))) if clauses else ""


def _points(hop: Hop, noun: str) -> str:
    """Write that an entity gives the one just found, a `noun`, under the hop's label."""
    if hop.label == LINKS:
        return f"whose page links to that of the {noun} just found"
    if hop.many:
        return f"whose {quote_label(hop.label)} list includes the {noun} just found"
    label = name_label(hop.label)
    return f"whose {label} is the {'one' if label == noun else noun} just found"


def _ask(label: str, what: str) -> str:
    if label and not is_noun(label):
        return f"What is given under {quote_label(label)} for {what}?"
    return f"What is the {name_label(label) if label else 'name'} of {what}?"


def word_question(nouns: list[str], hops: list[Hop], conditions: list[Condition], ask: str, hint: str) -> str:
    """Word a question: in one sentence where it is short, else in a sentence for each entity.

    nouns: the word for each entity's kind, the asked one first. ask: the label that is asked for; "": the name. hint: a
    sentence on the form of the answer.
    """
    clauses = [[word_condition(one) for one in conditions if one.place == place] for place in range(len(nouns))]
    last = len(nouns) - 1
    begin = f"the {nouns[last]} {join_clauses(clauses[last])}"
    if not hops:
        return f"{_ask(ask, begin)} {hint}"
    if len(hops) == 1 and hops[0].forward:
        given = f"the {nouns[0]} given under {quote_label(hops[0].label)} for {begin}"
        return f"{_ask(ask, f'the {name_label(hops[0].label)} of {begin}' if is_noun(hops[0].label) else given)} {hint}"
    lines, what = [f"Find {begin}."], f"that {nouns[0]}"
    for hop in reversed(hops):
        noun, before, label = nouns[hop.place], nouns[hop.place + 1], name_label(hop.label)
        found = f"the {noun} {join_clauses([*clauses[hop.place], _points(hop, before)])}"
        if hop.forward:
            which = f"the {noun} that is its {label}" if is_noun(hop.label) else f"the {noun} that its {label} names"
            lines.append(f"Go on to {which if label != noun else f'its {noun}'}.")
        elif hop.place:
            lines.append(f"Then find {found}.")
        else:
            what = found
    return f"{' '.join(lines)} {_ask(ask, what)} {hint}"
