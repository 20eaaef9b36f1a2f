"""The action parser: outputs parsed a second on one core, and a fuzz of mutated outputs that must not raise.

Case `mix`: a seeded mix over all text forms (85% as a trained model writes them, 12% with one of the slips of
`action_specimens`, 3% broken), each parsed in its own grammar. CPU time of this process, the median of the
rounds; ours and the peer take turns in each round. The peer is a parser in the manner of UI-TARS's public code:
regular expressions, `ast` for calls, `json` for tool calls, an exception where anything is amiss. It reads less
(`peer_read`) and says neither what was wrong nor where.

Case `foreign_forms`: the share of a corpus of other models' outputs (`foreign_forms.py`) that is read as meant, or
refused where it is to be; not one may be read as something else. The peer reads the same, and is credited with every
output that it reads or raises at as it should, whatever it makes of it.

Case `fuzz`: strings that raised, of --fuzz random and mutated ones; none may.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import action_specimens as specimens
import foreign_forms
from bench_case import BenchCase, emit_case, exit_code

from flywheel.agent.actions import ParseError
from flywheel.agent.grammar import Grammar
from flywheel.agent.parsing.parser import parse_response

GOAL = 50_000  # parses a second
MEANT = 0.98  # share of the corpus
MIX = ((specimens.plain, 85), (specimens.slipped, 12), (specimens.broken, 3))

_Output = tuple[str, Grammar]


def outputs(count: int, seed: int) -> list[_Output]:
    rng = random.Random(seed)
    kinds, weights = zip(*MIX, strict=True)
    grammars = [specimens.GRAMMARS[number % len(specimens.GRAMMARS)] for number in range(count)]
    return [(rng.choices(kinds, weights)[0](rng, grammar), grammar) for grammar in grammars]


_POINT = re.compile(r"<point>(\d+)\s+(\d+)</point>")
_THOUGHT = re.compile(r"Thought: (.+?)(?=\s*Action: |\s*<tool_call>|$)", re.DOTALL)
_TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def regex_and_ast(text: str, grammar: Grammar) -> dict[str, Any]:
    """The peer: name, arguments and points as fractions. Raises whatever the text makes it raise."""
    thought = _THOUGHT.search(text)
    width, height = grammar.space.size
    if grammar.form == "tool_call":
        arguments = json.loads(_TOOL_CALL.search(text)[1])["arguments"]
        name = arguments.get("action", "")
        for key in ("coordinate", "start_coordinate", "coordinate2"):
            if key in arguments:
                x, y = arguments[key]
                arguments[key] = (x / width, y / height)
    else:
        action = _POINT.sub(r"(\1,\2)", text.split("Action: ")[-1].strip())
        action = action.replace("<|box_start|>", "").replace("<|box_end|>", "").replace("\n", "\\n")
        call = ast.parse(action, mode="eval").body
        name = call.func.id
        arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        for key in ("point", "start_point", "end_point", "start_box", "end_box"):
            if key in arguments:
                x, y = arguments[key].strip("()").split(",")
                arguments[key] = (float(x) / width, float(y) / height)
    return {"thought": thought[1].strip() if thought else "", "name": name, "arguments": arguments}


def ours_reads(text: str, grammar: Grammar) -> bool:
    return not isinstance(parse_response(text, grammar).action, ParseError)


def peer_reads(text: str, grammar: Grammar) -> bool:
    try:
        regex_and_ast(text, grammar)
    except Exception:  # it raises many kinds
        return False
    return True


def rate(reads: Callable[[str, Grammar], bool], given: list[_Output]) -> float:
    """Outputs a second of CPU time."""
    started = time.process_time()
    for text, grammar in given:
        reads(text, grammar)
    return len(given) / (time.process_time() - started)


def mix(count: int, rounds: int, seed: int) -> BenchCase:
    given = outputs(count, seed)
    read = {reads: sum(reads(*one) for one in given) / count for reads in (ours_reads, peer_reads)}  # and warms up
    rates = [(rate(ours_reads, given), rate(peer_reads, given)) for _ in range(rounds)]
    ours, peer = (statistics.median(one) for one in zip(*rates, strict=True))
    return BenchCase(
        "parse",
        "mix",
        "parses/s",
        ours,
        peer,
        "regular expressions and ast, as in UI-TARS's public code",
        ours / peer,
        GOAL,
        ours >= GOAL,
        {
            "n": count,
            "rounds": rounds,
            "slowest_round": min(one for one, _ in rates),
            "ours_read": read[ours_reads],
            "peer_read": read[peer_reads],
        },
    )


def foreign() -> BenchCase:
    """Of the whole corpus, and in `held_out` of the part that the parser was not written by."""
    every = list(foreign_forms.outputs())
    held = [one for one in every if one.held_out]
    as_meant = sum(one.read_as_meant() for one in every) / len(every)
    another = [one for one in every if one.read_as_another()]
    for one in another:
        print(json.dumps({"read as something else": one.text[:300], "family": one.family}), flush=True)
    peer = sum(peer_reads(one.text, one.grammar) != isinstance(one.meant, str) for one in every) / len(every)
    return BenchCase(
        "parse",
        "foreign_forms",
        "share",
        as_meant,
        peer,
        "regular expressions and ast: reads, or raises, as meant",
        as_meant / peer,
        MEANT,
        as_meant >= MEANT and not another,
        {
            "n": len(every),
            "families": len({one.family for one in every}),
            "read_as_another": len(another),
            "held_out": sum(one.read_as_meant() for one in held) / len(held),
            "held_out_n": len(held),
        },
    )


def fuzz(count: int, seed: int) -> BenchCase:
    """Each string is made for one grammar and read in another, drawn at random."""
    rng = random.Random(seed)
    raised = errors = 0
    started = time.perf_counter()
    for _ in range(count):
        text = specimens.broken(rng, rng.choice(specimens.GRAMMARS))
        grammar = rng.choice(specimens.GRAMMARS)
        try:
            errors += isinstance(parse_response(text, grammar).action, ParseError)
        except Exception as error:
            raised += 1
            print(json.dumps({"raised": repr(error)[:200], "text": text[:300], "form": grammar.form}), flush=True)
    return BenchCase(
        "parse",
        "fuzz",
        "raised",
        raised,
        None,
        "",
        None,
        0,
        raised == 0,
        {"n": count, "seed": seed, "parse_errors": errors, "seconds": time.perf_counter() - started},
    )


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="flywheel bench parse", description=__doc__.partition("\n")[0])
    options.add_argument("--outputs", type=int, default=8_000, help="of the mix (default: %(default)s)")
    options.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    options.add_argument("--fuzz", type=int, default=100_000, help="strings (default: %(default)s)")
    options.add_argument("--seed", type=int, default=7)
    chosen = options.parse_args(argv)
    cases = [emit_case(mix(chosen.outputs, chosen.rounds, chosen.seed)), emit_case(foreign())]
    if chosen.fuzz:
        cases.append(emit_case(fuzz(chosen.fuzz, chosen.seed)))
    return exit_code(cases)


if __name__ == "__main__":
    raise SystemExit(main())
