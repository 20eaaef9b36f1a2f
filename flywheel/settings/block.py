"""What every block of the settings is: typed fields, each with its description in the string below it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, field_validator

Domain = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
LARGEST = 10**9  # of any number: above it counts and seconds leave what machines and libraries can hold


class Block(BaseModel):
    """Values are of the field's own type, `true` is no number, and every number is finite."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _sound(cls, value: Any, info) -> Any:
        wanted = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and wanted is not bool:
            known = f"; it is one of {', '.join(map(str, get_args(wanted)))}" if get_origin(wanted) is Literal else ""
            raise ValueError(f"{str(value).lower()} is not a value of it{known}")
        if isinstance(value, int | float) and abs(value) > LARGEST and info.field_name != "seed":
            raise ValueError(f"{value:.6g} is too large; the largest number is {LARGEST:.0e}")
        if isinstance(value, str) and not value.isprintable():
            raise ValueError("a text of one line is wanted, without control characters")
        return value
