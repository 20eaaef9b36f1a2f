"""What a task file of OSWorld's says, as far as it is read here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flywheel.errors import BadInput

Getter = dict[str, Any]


class Step(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    type: str
    parameters: dict[str, Any] = {}


class Evaluator(BaseModel):
    """func: one metric, or several, to each of which a result, what is expected and options belong by their order."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    func: str | list[str]
    conj: Literal["and", "or"] = "and"
    result: Getter | list[Getter | None] = {}
    expected: Getter | list[Getter | None] = {}
    options: dict[str, Any] | list[dict[str, Any] | None] = {}
    postconfig: list[Step] = []

    @model_validator(mode="after")
    def _whole(self) -> Evaluator:
        if not self.func:
            raise ValueError("func names no metric")
        several = isinstance(self.func, list)
        for name in ("result", "expected", "options"):
            said = getattr(self, name)
            if not said:
                continue
            if several and (not isinstance(said, list) or len(said) != len(self.func)):
                raise ValueError(f"{name} has not one entry for each of func")
            if not several and isinstance(said, list):
                raise ValueError(f"{name} is a list, and func is none")
        return self

    @property
    def metrics(self) -> list[tuple[str, Getter, Getter, dict[str, Any]]]:
        """Each with its result, what is expected, its options; {} where nothing is said."""
        if isinstance(self.func, str):
            return [(self.func, self.result, self.expected, self.options)]
        parts = [said or [{}] * len(self.func) for said in (self.result, self.expected, self.options)]
        return [(func, *(one or {} for one in rest)) for func, *rest in zip(self.func, *parts, strict=True)]


class Example(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    instruction: str = Field(min_length=1)
    config: list[Step] = []
    evaluator: Evaluator
    proxy: bool = False
    related_apps: list[str] = []


def read(path: Path) -> Example:
    """Raises BadInput that names the file and the field."""
    try:
        return Example.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        if not isinstance(error, ValidationError):
            raise BadInput(f"no task of OSWorld: {error}", where=path, fix="mend it, or leave it out") from None
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"])) or "whole"
        raise BadInput(f"the task's {field}: {fault['msg']}", where=path, fix="mend it, or leave it out") from None
