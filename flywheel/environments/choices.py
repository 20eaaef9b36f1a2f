"""What a manifest of tasks leaves to be drawn: placeholders of its texts, `{name}`, and what each is drawn from."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

Choices = Mapping[str, Sequence[Mapping[str, str] | str]]


def drawn(choices: Choices, rng: random.Random) -> dict[str, str]:
    """A text for each placeholder. A choice is a text, or a mapping whose entries are placeholders of their own."""
    values: dict[str, str] = {}
    for name, of in choices.items():
        one = rng.choice(of)
        values |= {name: one} if isinstance(one, str) else one
    return values


def filled(value: Any, values: Mapping[str, str]) -> Any:
    """JSON values with the placeholders of all their texts filled in, those of names too."""
    if isinstance(value, str):
        for name, text in values.items():
            value = value.replace(f"{{{name}}}", text)
        return value
    if isinstance(value, Mapping):
        return {filled(name, values): filled(one, values) for name, one in value.items()}
    return [filled(one, values) for one in value] if isinstance(value, list) else value
