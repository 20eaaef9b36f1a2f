"""Outputs in the forms of other models: read as meant or refused by name, and damage makes no other action of them."""

from __future__ import annotations

import random

import pytest

from flywheel.agent.actions import ParseError
from flywheel.agent.parsing import parser
from flywheel.agent.parsing.lexing import AMBIGUOUS, NO_SUCH_ACTION
from flywheel.agent.parsing.parser import parse_response
from flywheel.cli import bench

foreign = bench._load_script(bench.BENCHMARKS_FOLDER / "foreign_forms.py")
OUTPUTS = list(foreign.outputs())
SIGNS = frozenset("'\"()[]{},=<>/|`")


def test_the_corpus_is_as_large_as_it_says():
    assert len(OUTPUTS) >= 400
    assert len({one.family for one in OUTPUTS}) >= 8
    assert sum(one.held_out for one in OUTPUTS) >= 100


@pytest.mark.parametrize("family", sorted({one.family for one in OUTPUTS}))
def test_each_family_is_read_as_meant(family):
    wrong = [
        (one.text, one.meant, parse_response(one.text, one.grammar).action)
        for one in OUTPUTS
        if one.family == family and not one.held_out and not one.read_as_meant()
    ]
    assert wrong == []


def test_no_output_is_read_as_something_else():
    assert [one.text for one in OUTPUTS if one.read_as_another()] == []


def test_refusals_have_names():
    reasons = [parse_response(one.text, one.grammar).action.reason for one in OUTPUTS if isinstance(one.meant, str)]
    for name in (NO_SUCH_ACTION, AMBIGUOUS):
        assert sum(reason.startswith(f"{name}: ") for reason in reasons) > 5


# One action each, without a text in which a sign may be meant, and with no separator that may be lost between keys.
SINGLE = [
    one
    for one in OUTPUTS
    if not isinstance(one.meant, str)
    and not {"content", "app_name", "keys"} & set(vars(one.meant))
    and one.text.count("(") + one.text.count('{"action') + one.text.count("<function") < 3
    and one.read_as_meant()
]


def damaged(rng: random.Random, text: str, begin: int) -> str:
    """One sign dropped, doubled or put in another's place, or all quotes swapped, behind `begin`."""
    places = [at for at, sign in enumerate(text) if sign in SIGNS and at >= begin]
    if not places:
        return text
    at, other = rng.choice(places), rng.choice(places)
    match rng.randrange(4):
        case 0:
            return text[:at] + text[at + 1 :]
        case 1:
            return text[:at] + text[at] + text[at:]
        case 2:
            return text[:at] + text[other] + text[at + 1 :]
    return text.translate(str.maketrans("'\"", "\"'"))


def test_damage_makes_no_other_action():
    """The action that was meant, or a fault: points, buttons and directions do not come out of brackets and quotes."""
    rng, read = random.Random(11), 0
    assert len(SINGLE) > 100
    for _ in range(4_000):
        one = rng.choice(SINGLE)
        ends = [tag.end() for tag in parser.THINKING_TAG.finditer(one.text)]
        text = damaged(rng, one.text, max(ends, default=0))
        action = parse_response(text, one.grammar).action
        if not isinstance(action, ParseError):
            assert action == one.meant, text
            read += 1
    assert read > 800
