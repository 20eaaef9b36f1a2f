"""Draw chores on logs: what happened, how often, to whom."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from flywheel.agent.actions import Finished, RunPython, Terminal
from flywheel.envs.suites.chores.family import ChoreFamily, ChoreParams, ExpertSteps, draw_words, step_budgets

_LEVELS = ("INFO", "INFO", "INFO", "WARN", "ERROR")
_SERVICES = ("api", "auth", "cache", "db", "mail", "web")


def _errors(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a log and a question: how many errors in all (level 1), of one service (2), which service has most (3)."""
    path = f"{draw_words(rng, 1)[0]}.log"
    lines, counted = [], Counter()
    for n in range(20 + 20 * level):
        service, kind = rng.choice(_SERVICES), rng.choice(_LEVELS)
        lines.append(
            f"2026-03-0{1 + n // 30} {n % 24:02}:{rng.randrange(60):02} {kind} {service}: "
            f"{rng.choice(draw_words(rng, 2))}"
        )
        counted[service] += kind == "ERROR"
    most = counted.most_common(2)
    if len(most) < 2 or most[0][1] == most[1][1]:
        return _errors(level, rng)
    service = most[0][0]
    ask = ("How many errors are", f"How many errors of the service {service} are", "Which service has the most errors")
    answer = (sum(counted.values()), counted[service], service)[level - 1]
    return {"files": {path: "\n".join(lines) + "\n"}, "answer": str(answer), "path": path, "ask": ask[level - 1]}


def _play_errors(p: ChoreParams) -> ExpertSteps:
    yield (
        "I count the errors of each service.",
        Terminal(f"grep ' ERROR ' {p['path']} | cut -d' ' -f4 | sort | uniq -c"),
    )
    yield "That is what was asked.", Finished(p["answer"])


def _visitors(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a log of requests and ask for the most frequent address (level 1), page (2), three addresses in a file
    (3)."""
    path, out = draw_words(rng, 2)
    who = [f"10.0.{rng.randrange(256)}.{rng.randrange(256)}" for _ in range(6)]
    pages = [f"/{word}" for word in draw_words(rng, 6)]
    if len(set(who)) < 6:
        return _visitors(level, rng)
    counts = rng.sample(range(2, 14), 6)
    asked = [one for one, count in zip(pages if level == 2 else who, counts, strict=True) for _ in range(count)]
    rng.shuffle(asked)
    lines = [f"{rng.choice(who)} GET {one}" if level == 2 else f"{one} GET {rng.choice(pages)}" for one in asked]
    order = [one for one, _ in Counter(asked).most_common()]
    made: dict[str, Any] = {"files": {f"{path}.log": "\n".join(lines) + "\n"}, "path": f"{path}.log"}
    if level < 3:
        ask = "Which address asked most often" if level == 1 else "Which page was asked for most often"
        return {**made, "answer": order[0], "ask": f"{ask}, by {path}.log?"}
    ask = (
        f"Write the three addresses that asked most often, by {path}.log, into {out}.list: one a line, the first first."
    )
    return {
        **made,
        "wanted": {f"{out}.list": "".join(f"{one}\n" for one in order[:3])},
        "out": f"{out}.list",
        "ask": ask,
    }


def _play_visitors(p: ChoreParams) -> ExpertSteps:
    field = 3 if "page" in p["ask"] else 1
    count = f"cut -d' ' -f{field} {p['path']} | sort | uniq -c | sort -rn"
    yield "I count how often each one is there.", Terminal(count)
    if "answer" in p:
        yield "It is the first.", Finished(p["answer"])
    else:
        yield "I write the first three.", Terminal(f"{count} | head -3 | awk '{{print $2}}' > {p['out']}")


def _slow(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a log of durations and a question: the longest (level 1), the mean (2), the mean of one page (3)."""
    path, *pages = draw_words(rng, 5)
    found = [(rng.choice(pages), rng.randint(10, 900)) for _ in range(12 + 8 * level)]
    times = [time for page, time in found if level < 3 or page == pages[0]]
    if not times or found.count(max(found, key=lambda one: one[1])) > 1:
        return _slow(level, rng)
    answer = max(times) if level == 1 else sum(times) / len(times)
    ask = ("How long did the slowest request take", "How long did a request take on average",
           f"How long did a request of /{pages[0]} take on average")[level - 1]  # fmt: skip
    whole = "" if level == 1 else ", rounded to a whole number"
    if level > 1 and abs(answer % 1 - 0.5) < 0.02:  # both roundings would be right
        return _slow(level, rng)
    log = "".join(f"GET /{page} {time}ms\n" for page, time in found)
    return {"files": {f"{path}.log": log}, "answer": str(round(answer)), "path": f"{path}.log", "ask": ask,
            "whole": whole, "page": pages[0] if level == 3 else ""}  # fmt: skip


def _play_slow(p: ChoreParams) -> ExpertSteps:
    code = f"rows = [line.split() for line in open({p['path']!r})]\n"
    code += f"times = [int(row[2][:-2]) for row in rows if row[1].startswith('/{p['page']}')]\n"
    yield "I read the times.", RunPython(code + "print(max(times), sum(times) / len(times))\n")
    yield "That is what was asked.", Finished(p["answer"])


FAMILIES = {
    "errors": ChoreFamily(
        "{ask} in {path}? Errors are the lines with ERROR.", _errors, _play_errors, step_budgets(6, 6, 8)
    ),
    "visitors": ChoreFamily("{ask}", _visitors, _play_visitors, step_budgets(6, 6, 8)),
    "slow": ChoreFamily("{ask}, in ms, by {path}{whole}?", _slow, _play_slow, step_budgets(6, 6, 8)),
}
