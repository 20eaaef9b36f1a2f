"""Encode the messages between a client and the node that hosts its environment: calls, results, errors, signed leases.

A message is the length of a JSON object (four bytes, big-endian), the object, and further bytes (a picture, a
checkpoint). To decode it runs no code.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flywheel.agent.actions import Action, actions_from_json, actions_to_json
from flywheel.envs.base import Observation, StepResult
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout

_LENGTH = struct.Struct(">I")
_ERRORS = {kind.__name__: kind for kind in (EnvError, EnvTimeout, BadInput)}


@dataclass(frozen=True)
class LeaseToken:
    """Hold the claims of a lease, which a node trusts since the manager has signed them.

    session: id of the leased session. node: name of the node that plays it. kind: the back-end. identity: hash of the
    back-end's settings. until: end of the lease, in seconds since 1970.
    """

    session: str
    node: str
    kind: str
    identity: str
    until: float

    def sign(self, token: str) -> str:
        """Encode the claims as a header's value, signed with the manager's `token`."""
        body = base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()
        return f"{body}.{_sign(token, body)}"

    @classmethod
    def parse(cls, text: str, token: str) -> LeaseToken:
        """Parse a text of `sign`. token: the manager's. Raises ValueError where the manager has not signed it."""
        body, _, signature = text.partition(".")
        if not hmac.compare_digest(_sign(token, body).encode(), signature.encode()):
            raise ValueError("the lease is not signed by the manager")
        return cls(**json.loads(base64.urlsafe_b64decode(body)))


def _sign(token: str, body: str) -> str:
    return hmac.new(token.encode(), body.encode(), hashlib.sha256).hexdigest()


def encode_message(head: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Encode a message: the JSON object `head` and the bytes `body`."""
    text = json.dumps(head).encode()
    return _LENGTH.pack(len(text)) + text + body


def decode_message(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Decode a message: its JSON object and its bytes. Raises ValueError for other data."""
    if len(data) < _LENGTH.size or len(data) < (end := _LENGTH.size + _LENGTH.unpack_from(data)[0]):
        raise ValueError("the message is cut off")
    head = json.loads(data[_LENGTH.size : end])
    if not isinstance(head, dict):
        raise ValueError("the message has no head")
    return head, data[end:]


def encode_step(action: Action, said: Sequence[Mapping[str, Any]]) -> bytes:
    """Encode the call of a step. said: what the agent announced since its last step (`StepListener`)."""
    return encode_message({"action": actions_to_json([action]), "said": [dict(one) for one in said]})


def decode_step(data: bytes) -> tuple[Action, list[dict[str, Any]]]:
    """Decode the call of a step: its action, and what was announced.

    Raises ValueError, KeyError or TypeError for other data.
    """
    head, _ = decode_message(data)
    (action,) = actions_from_json(head["action"])
    said = head["said"]
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
        raise ValueError("what the agent said is no list of objects")
    return action, said


def encode_result(result: StepResult) -> bytes:
    """Encode the result of a reset or a step, whose screenshot becomes the message's bytes."""
    seen = result.observation
    head = {"width": seen.width, "height": seen.height, "url": seen.url, "text": seen.text}
    head |= {"picture": seen.screenshot is not None, "reward": result.reward}
    head |= {"terminated": result.terminated, "truncated": result.truncated, "info": dict(result.info)}
    return encode_message(head, seen.screenshot or b"")


def decode_result(data: bytes) -> StepResult:
    """Decode the result of a reset or a step. Raises ValueError or KeyError for other data."""
    head, body = decode_message(data)
    seen = Observation(body if head["picture"] else None, head["width"], head["height"], head["url"], head["text"])
    return StepResult(seen, head["reward"], head["terminated"], head["truncated"], head["info"])


def encode_error(error: Exception) -> bytes:
    """Encode an error as JSON; one of another kind than EnvError, EnvTimeout and BadInput becomes an EnvError."""
    if not isinstance(error, EnvError | BadInput):
        error = EnvError(f"{type(error).__name__}: {error}", where="node")
    name = next(kind.__name__ for kind in (EnvTimeout, EnvError, BadInput) if isinstance(error, kind))
    return json.dumps({"error": name, "what": error.what, "where": error.where, "fix": error.fix}).encode()


def decode_error(data: bytes) -> EnvError | BadInput:
    """Decode an error; other data becomes an EnvError that says so."""
    try:
        body = json.loads(data)
        return _ERRORS[body["error"]](body["what"], where=body["where"], fix=body["fix"])
    except (ValueError, KeyError, TypeError):
        return EnvError(f"the node answered what cannot be read: {data[:80]!r}")


def hash_backend_settings(values: Mapping[str, Any]) -> str:
    """Hash a back-end's settings (`EnvBackend.identity`) to 16 hex digits, to compare those of client and node."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]
