"""What is wrong with settings, in words: each fault by the parameter's dotted name, with what is near or known."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from flywheel.settings import earlier


@dataclass(frozen=True)
class Fault:
    """parameter: dotted; empty where the message itself names several."""

    parameter: str
    message: str

    @property
    def line(self) -> str:
        return f"{self.parameter}: {self.message}" if self.parameter else self.message

    def names(self, parameters: Iterable[str]) -> bool:
        """Whether it is about one of these parameters, or a block or an entry of one."""
        said = {self.parameter} if self.parameter else set(re.findall(r"[a-z_]+(?:\.[a-z_]+)+", self.message))
        return any(
            f"{one}.".startswith(f"{name}.") or f"{name}.".startswith(f"{one}.") for one in said for name in parameters
        )


def told(error: ValidationError, settings: type[BaseModel]) -> list[Fault]:
    """The faults, each once: a field of several forms is told in one line."""
    by_name: dict[str, list[str]] = {}
    for fault in error.errors():
        path = [str(part) for part in fault["loc"]]
        found = place(path, settings)
        name = ".".join(path if found is None else found)
        by_name.setdefault(name, []).append(_message(fault, path, settings))
    return [Fault(name, ", or ".join(dict.fromkeys(messages))) for name, messages in by_name.items()]


def place(path: Sequence[str], block: type[BaseModel]) -> list[str] | None:
    """The part of a path that names a parameter, an entry of a list or mapping included; None where there is none.

    Behind a field pydantic puts tags of its own too (which form of a union was tried): they are left out.
    """
    if not path or path[0] not in block.model_fields:
        return None
    inner = block.model_fields[path[0]].annotation
    if isinstance(inner, type) and issubclass(inner, BaseModel):
        rest = place(path[1:], inner) if len(path) > 1 else []
        return None if rest is None else [path[0], *rest]
    if typing.get_origin(inner) in (typing.Union, types.UnionType) or not re.fullmatch(r"\w+", "".join(path[1:2])):
        return [path[0]]
    return list(path[:2])


def _message(fault: dict[str, Any], path: Sequence[str], settings: type[BaseModel]) -> str:
    if fault["type"] != "extra_forbidden":
        return fault["msg"].removeprefix("Value error, ").replace("Input should", "must")
    if said := earlier.told(".".join(path)):
        return said
    block: type[BaseModel] = settings
    for part in path[:-1]:
        block = block.model_fields[part].annotation
    near = difflib.get_close_matches(path[-1], block.model_fields, 1)
    return "there is no such parameter" + (f"; did you mean {near[0]}?" if near else "")
