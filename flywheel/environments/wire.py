"""What is said between who plays and a node that has the environments: calls, their results, errors, signed leases.

A message is a JSON object, and bytes behind it: the length of the JSON in four bytes, the JSON, the bytes (a picture, a
checkpoint). Nothing in it is code.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flywheel.environments.env import Observation, StepResult, Task
from flywheel.errors import BadInput, EnvError, EnvTimeout

_LENGTH = struct.Struct(">I")
_ERRORS = {kind.__name__: kind for kind in (EnvError, EnvTimeout, BadInput)}


@dataclass(frozen=True)
class LeaseNote:
    """What a node believes of a session, signed by the manager. until: seconds since 1970."""

    session: str
    node: str
    kind: str
    identity: str
    until: float

    def signed(self, token: str) -> str:
        """A text for a header."""
        body = base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()
        return f"{body}.{_signature(token, body)}"

    @classmethod
    def read(cls, text: str, token: str) -> LeaseNote:
        """Raises ValueError where the manager has not signed it."""
        body, _, signature = text.partition(".")
        if not hmac.compare_digest(_signature(token, body).encode(), signature.encode()):
            raise ValueError("the lease is not signed by the manager")
        return cls(**json.loads(base64.urlsafe_b64decode(body)))


def _signature(token: str, body: str) -> str:
    return hmac.new(token.encode(), body.encode(), hashlib.sha256).hexdigest()


def message(head: Mapping[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return _LENGTH.pack(len(text)) + text + body


def opened(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Raises ValueError for what is no message."""
    if len(data) < _LENGTH.size or len(data) < (end := _LENGTH.size + _LENGTH.unpack_from(data)[0]):
        raise ValueError("the message is cut off")
    head = json.loads(data[_LENGTH.size : end])
    if not isinstance(head, dict):
        raise ValueError("the message has no head")
    return head, data[end:]


def result_sent(result: StepResult) -> bytes:
    seen = result.observation
    head = {
        "width": seen.width,
        "height": seen.height,
        "url": seen.url,
        "text": seen.text,
        "picture": seen.screenshot is not None,
    }
    head |= {"reward": result.reward, "terminated": result.terminated, "truncated": result.truncated}
    return message({**head, "info": dict(result.info)}, seen.screenshot or b"")


def result_read(data: bytes) -> StepResult:
    """Raises ValueError or KeyError for what is no result."""
    head, body = opened(data)
    seen = Observation(body if head["picture"] else None, head["width"], head["height"], head["url"], head["text"])
    return StepResult(seen, head["reward"], head["terminated"], head["truncated"], head["info"])


def task_sent(task: Task) -> dict[str, Any]:
    return asdict(task)


def task_read(fields: Mapping[str, Any]) -> Task:
    """Raises TypeError for what is no task."""
    return Task(**fields)


def error_sent(error: Exception) -> bytes:
    """As JSON. What is no error of an environment's own is told as a crash of it."""
    if not isinstance(error, EnvError | BadInput):
        error = EnvError(f"{type(error).__name__}: {error}", where="node")
    name = next(kind.__name__ for kind in (EnvTimeout, EnvError, BadInput) if isinstance(error, kind))
    return json.dumps({"error": name, "what": error.what, "where": error.where, "fix": error.fix}).encode()


def error_read(data: bytes) -> EnvError | BadInput:
    try:
        said = json.loads(data)
        return _ERRORS[said["error"]](said["what"], where=said["where"], fix=said["fix"])
    except (ValueError, KeyError, TypeError):
        return EnvError(f"the node answered what cannot be read: {data[:80]!r}")


def identity(values: Mapping[str, Any]) -> str:
    """A short name of a kind's settings, by which who plays and the node know that they mean the same."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]
