"""Encode what client and node say to each other: calls, results, errors, signed leases.

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

from flywheel.envs.base import Observation, StepResult
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout

_LENGTH = struct.Struct(">I")
_ERRORS = {kind.__name__: kind for kind in (EnvError, EnvTimeout, BadInput)}


@dataclass(frozen=True)
class LeaseToken:
    """Hold claims about a session that a node trusts, since the manager signed them. until: seconds since 1970."""

    session: str
    node: str
    kind: str
    identity: str
    until: float

    def signed(self, token: str) -> str:
        """Sign it with the manager's token: a text for a header."""
        body = base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()
        return f"{body}.{_sign(token, body)}"

    @classmethod
    def parse(cls, text: str, token: str) -> LeaseToken:
        """Parse a signed text. Raises ValueError where the manager has not signed it."""
        body, _, signature = text.partition(".")
        if not hmac.compare_digest(_sign(token, body).encode(), signature.encode()):
            raise ValueError("the lease is not signed by the manager")
        return cls(**json.loads(base64.urlsafe_b64decode(body)))


def _sign(token: str, body: str) -> str:
    return hmac.new(token.encode(), body.encode(), hashlib.sha256).hexdigest()


def encode_message(head: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Encode a JSON object and the bytes behind it."""
    text = json.dumps(head).encode()
    return _LENGTH.pack(len(text)) + text + body


def decode_message(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Decode a message: its JSON object and its bytes. Raises ValueError for what is none."""
    if len(data) < _LENGTH.size or len(data) < (end := _LENGTH.size + _LENGTH.unpack_from(data)[0]):
        raise ValueError("the message is cut off")
    head = json.loads(data[_LENGTH.size : end])
    if not isinstance(head, dict):
        raise ValueError("the message has no head")
    return head, data[end:]


def encode_result(result: StepResult) -> bytes:
    """Encode a result, with its screenshot as the bytes."""
    seen = result.observation
    head = {"width": seen.width, "height": seen.height, "url": seen.url, "text": seen.text}
    head |= {"picture": seen.screenshot is not None, "reward": result.reward}
    head |= {"terminated": result.terminated, "truncated": result.truncated, "info": dict(result.info)}
    return encode_message(head, seen.screenshot or b"")


def decode_result(data: bytes) -> StepResult:
    """Decode a result. Raises ValueError or KeyError for what is none."""
    head, body = decode_message(data)
    seen = Observation(body if head["picture"] else None, head["width"], head["height"], head["url"], head["text"])
    return StepResult(seen, head["reward"], head["terminated"], head["truncated"], head["info"])


def encode_error(error: Exception) -> bytes:
    """Encode an error as JSON; what is no error of an environment's own becomes an EnvError."""
    if not isinstance(error, EnvError | BadInput):
        error = EnvError(f"{type(error).__name__}: {error}", where="node")
    name = next(kind.__name__ for kind in (EnvTimeout, EnvError, BadInput) if isinstance(error, kind))
    return json.dumps({"error": name, "what": error.what, "where": error.where, "fix": error.fix}).encode()


def decode_error(data: bytes) -> EnvError | BadInput:
    """Decode an error; what is none becomes an EnvError that says so."""
    try:
        body = json.loads(data)
        return _ERRORS[body["error"]](body["what"], where=body["where"], fix=body["fix"])
    except (ValueError, KeyError, TypeError):
        return EnvError(f"the node answered what cannot be read: {data[:80]!r}")


def hash_backend_settings(values: Mapping[str, Any]) -> str:
    """Hash a back-end's settings (16 hexadecimal digits): player and node compare them by it."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]
