"""Read and check the fields of a posted form on the server: a site never trusts what a browser sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

Wrong = str | tuple[str, dict[str, Any]]  # an error message of the catalogue, or one with its values; "": no error
Check = Callable[[str], Wrong]
LONGEST = 2000  # characters of any field at most, whatever its `longest`
_EMAIL = re.compile(r"[^\s@]{1,64}@[^\s@.]+(\.[^\s@.]+)+")


class Invalid(Exception):
    """Report what is wrong with a form, as field name -> message. The site shows the form again, with these."""

    def __init__(self, **errors: Wrong) -> None:
        super().__init__(str(errors))
        self.errors = errors


@dataclass(frozen=True)
class Field:
    """Describe one field. longest: characters at most. check: returns what is wrong with a value that is not empty."""

    name: str
    required: bool = True
    longest: int = 200
    check: Check | None = None


def read_form(form: Mapping[str, str], fields: Iterable[Field]) -> dict[str, str]:
    """Return the fields' values, stripped; a field that was not sent is "". Raises Invalid where a value is wrong."""
    values, errors = {}, {}
    for field in fields:
        value = values[field.name] = form.get(field.name, "").strip()
        if not value:
            if field.required:
                errors[field.name] = "Please fill in this field."
        elif len(value) > min(field.longest, LONGEST):
            errors[field.name] = "This is too long."
        elif field.check and (wrong := field.check(value)):
            errors[field.name] = wrong
    if errors:
        raise Invalid(**errors)
    return values


def email(value: str) -> str:
    """Check that `value` is an e-mail address; returns what is wrong, "" if nothing."""
    return "" if _EMAIL.fullmatch(value) else "Enter an e-mail address, such as ann@example.com."


def day(value: str) -> str:
    """Check that `value` is a day as 2026-01-31; returns what is wrong, "" if nothing."""
    try:
        return "" if date.fromisoformat(value).isoformat() == value else "Enter a day as 2026-01-31."
    except ValueError:
        return "Enter a day as 2026-01-31."


def clock(value: str) -> str:
    """Check that `value` is a time of day as 09:30; returns what is wrong, "" if nothing."""
    return "" if re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", value) else "Enter a time as 09:30."


def digits(count: int) -> Check:
    """Make a check for exactly `count` ASCII digits: a postcode, a card number."""
    return lambda value: (
        "" if re.fullmatch(rf"[0-9]{{{count}}}", value) else ("Enter {count} digits.", {"count": count})
    )


def whole_number(low: int, high: int) -> Check:
    """Make a check for a whole number from `low` to `high`."""

    def check(value: str) -> Wrong:
        right = re.fullmatch(r"-?[0-9]{1,9}", value) and low <= int(value) <= high
        return "" if right else ("Enter a number from {low} to {high}.", {"low": low, "high": high})

    return check


def one_of(options: Iterable[str]) -> Check:
    """Make a check for one of the `options`."""
    known = frozenset(options)
    return lambda value: "" if value in known else "Choose one of the options."
