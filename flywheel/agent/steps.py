"""A step that is over, as memory keeps it, and its one-line summary."""

from __future__ import annotations

from dataclasses import dataclass

SUMMARY_CHARACTERS = 80


@dataclass(frozen=True)
class PastStep:
    """A step that is over. screenshot: the PNG it was chosen on (None where it was not kept, or there was none).

    The fields are those of `trajectory.Step`, empty where it has None; typed: the text of a `type`. observation:
    what was there to read, None where the screen was all.
    """

    screenshot: bytes | None
    thought: str
    action: str
    tool_result: str = ""
    action_type: str = ""
    typed: str = ""
    url: str = ""
    parse_error: str = ""
    observation: str | None = None


def summarise(step: PastStep, characters: int = SUMMARY_CHARACTERS) -> str:
    """A step in one line, by rule: its thought, or where there is none its action; then what a tool returned."""
    text = one_line(step.thought or step.action or "No action.")
    if step.tool_result:
        text += " -> " + one_line(step.tool_result)
    return cut(text, characters)


def outcome(step: PastStep) -> str:
    """What the policy is told in full beside the next screen: what the step returned, or that it did nothing."""
    return step.tool_result or (f"No action was carried out: {step.parse_error}." if step.parse_error else "")


def one_line(text: str) -> str:
    return " ".join(text.split())


def cut(text: str, characters: int) -> str:
    """The text, its end left out where it has more characters."""
    return text if len(text) <= characters else text[: max(0, characters - 3)].rstrip() + "..."[:characters]


def cut_middle(text: str, characters: int) -> str:
    """The text, its middle left out where it has more characters: a tool's last lines say as much as its first."""
    if len(text) <= characters:
        return text
    mark = f"\n[{len(text) - characters} characters left out]\n"
    kept = max(0, characters - len(mark))
    return (text[: kept - kept // 2] + mark + text[len(text) - kept // 2 :])[:characters]
