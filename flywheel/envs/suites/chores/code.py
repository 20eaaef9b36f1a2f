"""Draw chores on code: small programs to repair and to write, tested by calls that the agent does not see."""

from __future__ import annotations

import json
import random
from typing import Any

from flywheel.agent.actions import Finished, ReadFile, Terminal, WriteFile
from flywheel.envs.suites.chores.family import ChoreFamily, ChoreParams, ExpertSteps, draw_words, step_budgets

# By level: name, what the docstring says, right body, body with a mistake.
_FUNCTIONS: dict[int, tuple[tuple[str, str, str, str], ...]] = {
    1: (
        ("double", "twice n", "return 2 * n", "return n + 2"),
        ("square", "n times itself", "return n * n", "return n + n"),
        ("is_even", "whether n is even", "return n % 2 == 0", "return n % 2 == 1"),
        ("last_digit", "the last digit of n", "return n % 10", "return n // 10"),
    ),
    2: (
        ("total", "the sum of the whole numbers from 1 to n", "return sum(range(1, n + 1))", "return sum(range(n))"),
        ("factorial", "the product of the whole numbers from 1 to n",
         "out = 1\n    for i in range(1, n + 1):\n        out *= i\n    return out",
         "out = 0\n    for i in range(1, n + 1):\n        out *= i\n    return out"),
        ("digits", "the sum of the digits of n", "return sum(int(d) for d in str(n))", "return len(str(n))"),
        ("evens", "how many even numbers there are from 1 to n", "return n // 2", "return (n + 1) // 2"),
    ),
    3: (
        ("is_prime", "whether n is a prime number", "return n > 1 and all(n % i for i in range(2, int(n ** 0.5) + 1))",
         "return n > 1 and all(n % i for i in range(2, int(n ** 0.5)))"),
        ("fibonacci", "the n-th of 1, 1, 2, 3, 5, 8, counted from 1",
         "a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a",
         "a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + a\n    return a"),
        ("divisors", "how many whole numbers divide n", "return sum(n % i == 0 for i in range(1, n + 1))",
         "return sum(n % i == 0 for i in range(1, n))"),
        ("binary", "how many ones the binary form of n has", "return bin(n).count('1')", "return bin(n).count('0')"),
    ),
}  # fmt: skip
_SHOWN = range(4, 8)
_ASKED = (9, 10, 16, 17, 25, 29, 49, 60)


def _values(name: str, body: str, numbers) -> list[Any]:
    """Return what the right body gives for each of `numbers`. exec is safe: the body is one of those above."""
    space: dict[str, Any] = {}
    exec(f"def {name}(n):\n    {body}\n", space)
    return [space[name](n) for n in numbers]


def _source(name: str, doc: str, body: str) -> str:
    return f'def {name}(n):\n    """Give {doc}."""\n    {body}\n'


def _tests(module: str, name: str, body: str) -> str:
    values = zip(_SHOWN, _values(name, body, _SHOWN), strict=True)
    lines = "".join(f"    assert {name}({n}) == {value!r}, {name}({n})\n" for n, value in values)
    return f"from {module} import {name}\n\n\ndef test_{name}():\n{lines}\n\ntest_{name}()\nprint('passed')\n"


def _probe(module: str, name: str, body: str) -> dict[str, Any]:
    ask = f"import json; from {module} import {name}; print(json.dumps([{name}(n) for n in {list(_ASKED)}]))"
    return {"probe": [["python3", "-c", ask]], "printed": [json.dumps(_values(name, body, _ASKED))]}


def _mend(level: int, rng: random.Random) -> dict[str, Any]:
    module = draw_words(rng, 1)[0]
    name, doc, body, wrong = rng.choice(_FUNCTIONS[level])
    test = _tests(module, name, body)
    return {"files": {f"{module}.py": _source(name, doc, wrong), f"test_{module}.py": test}, "free": [f"{module}.py"],
            **_probe(module, name, body), "module": module, "right": _source(name, doc, body)}  # fmt: skip


def _play_mend(p: ChoreParams) -> ExpertSteps:
    yield "I see how it fails.", Terminal(f"python3 test_{p['module']}.py")
    yield "I read the program.", ReadFile(f"{p['module']}.py")
    yield "I write it right.", WriteFile(f"{p['module']}.py", p["right"])
    yield "I try it again.", Terminal(f"python3 test_{p['module']}.py")
    yield "It passes.", Finished("")


def _implement(level: int, rng: random.Random) -> dict[str, Any]:
    module = draw_words(rng, 1)[0]
    name, doc, body, _ = rng.choice(_FUNCTIONS[level])
    test = _tests(module, name, body)
    return {"files": {f"test_{module}.py": test}, **_probe(module, name, body), "module": module, "name": name,
            "doc": doc, "right": _source(name, doc, body)}  # fmt: skip


def _play_implement(p: ChoreParams) -> ExpertSteps:
    yield "I write the function.", WriteFile(f"{p['module']}.py", p["right"])
    yield "I try it.", Terminal(f"python3 test_{p['module']}.py")
    yield "It passes.", Finished("")


FAMILIES = {
    "mend": ChoreFamily(
        "test_{module}.py fails. Mend {module}.py, so that it passes and the function does what it says; leave the "
        "test as it is.",
        _mend, _play_mend, step_budgets(8, 8, 10),
    ),
    "implement": ChoreFamily(
        "Write {module}.py with a function {name}(n) that gives {doc}. test_{module}.py tries it.",
        _implement, _play_implement, step_budgets(8, 8, 10),
    ),
}  # fmt: skip
