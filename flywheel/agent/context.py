"""What a policy is shown: messages of texts and screens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Image:
    """A screen, as the bytes of a PNG."""

    png: bytes


@dataclass(frozen=True)
class Message:
    """role: system, user or assistant. parts: text and images in reading order."""

    role: str
    parts: tuple[str | Image, ...]


Context = tuple[Message, ...]
