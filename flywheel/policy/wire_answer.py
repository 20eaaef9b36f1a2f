"""The wire form of completions: OpenAI's chat completions, with the token ids that `vllm serve` adds to them.

Both ends read and write it here. The fields added to OpenAI's are vLLM's, `prompt_token_ids` in an answer and
`token_ids` in each of its choices; and one of our own, `weight_version` in each choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.errors import PolicyError, first_line
from flywheel.policy.protocol import Completion
from flywheel.policy.wire_request import Asked


@dataclass(frozen=True)
class Answer:
    """completion.weight_version is empty where the server does not say. prompt_token_ids: None likewise."""

    completion: Completion
    prompt_token_ids: tuple[int, ...] | None


def write_answer(
    head: dict[str, Any],
    asked: Asked,
    completions: Sequence[Completion],
    prompt_ids: Sequence[int],
    spell: Callable[[int], str],
) -> dict[str, Any]:
    """The body of an answer. head: id, created and model. spell: the text of one token."""
    choices = []
    for index, completion in enumerate(completions):
        choice = {"index": index, "message": {"role": "assistant", "content": completion.text}}
        choices.append(choice | _rest_of_choice(asked, completion, spell))
    body = {**head, "object": "chat.completion", "choices": choices, "usage": _usage(completions)}
    if asked.token_ids:
        body["prompt_token_ids"] = list(prompt_ids)
    return body | {"system_fingerprint": completions[0].weight_version}


def write_chunks(
    head: dict[str, Any],
    asked: Asked,
    completions: Sequence[Completion],
    prompt_ids: Sequence[int],
    spell: Callable[[int], str],
) -> Iterator[dict[str, Any]]:
    """The same answer as a stream's chunks. The text of a choice comes in one piece: it is about a dozen tokens."""
    head = {**head, "object": "chat.completion.chunk"}
    for index, completion in enumerate(completions):
        delta = {"role": "assistant", "content": completion.text}
        chunk = {**head, "choices": [{"index": index, "delta": delta, **_rest_of_choice(asked, completion, spell)}]}
        if asked.token_ids and index == 0:
            chunk["prompt_token_ids"] = list(prompt_ids)
        yield chunk | {"system_fingerprint": completion.weight_version}
    if asked.usage_in_stream:
        yield {**head, "choices": [], "usage": _usage(completions)}


def _rest_of_choice(asked: Asked, completion: Completion, spell: Callable[[int], str]) -> dict[str, Any]:
    logprobs = None
    if asked.logprobs:
        logprobs = {
            "content": [
                {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
                for text, value in zip(map(spell, completion.token_ids), completion.logprobs, strict=True)
            ]
        }
    rest: dict[str, Any] = {"logprobs": logprobs, "finish_reason": "stop" if completion.finished else "length"}
    if asked.token_ids:
        rest["token_ids"] = list(completion.token_ids)
    return rest | {"weight_version": completion.weight_version}


def _usage(completions: Sequence[Completion]) -> dict[str, int]:
    prompt, sampled = completions[0].prompt_tokens, sum(len(completion.token_ids) for completion in completions)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def read_answer(body: Any, *, where: str) -> Answer:
    """The one completion of an answer. Raises PolicyError that names what is missing or cannot be true."""
    try:
        (choice,) = body["choices"]
        ids, text, reason = choice.get("token_ids"), choice["message"]["content"], choice["finish_reason"]
        entries = (choice.get("logprobs") or {}).get("content")
        prompt, prompt_ids = body["usage"]["prompt_tokens"], body.get("prompt_token_ids")
        version = choice.get("weight_version", "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _wrong(
            f"not an answer of a chat completion ({type(error).__name__}: {first_line(str(error))})", where
        ) from None
    if ids is None:
        raise PolicyError(
            "the server gives no token ids, and training must not guess them from the text",
            where=where,
            fix="use a server that honours return_token_ids: flywheel serve, or vllm 0.10.2 and newer",
        )
    if entries is None:
        raise PolicyError(
            "the server gives no log-probabilities", where=where, fix="use a server that honours logprobs"
        )
    if not _integers(ids) or not (prompt_ids is None or _integers(prompt_ids)) or not _integers([prompt]):
        raise _wrong("token ids and counts must be whole numbers of 0 or more", where)
    try:
        logprobs = tuple(float(entry["logprob"]) for entry in entries)
    except (KeyError, TypeError, ValueError):
        raise _wrong("an entry of logprobs.content has no number", where) from None
    if len(logprobs) != len(ids):
        raise _wrong(f"{len(ids)} token ids and {len(logprobs)} log-probabilities", where)
    if not ids:
        raise _wrong("an answer without a token", where)
    bad = [value for value in logprobs if not math.isfinite(value) or value > 1e-3]
    if bad:
        raise _wrong(f"a log-probability of {bad[0]}", where)
    if not isinstance(text, str | None) or not isinstance(version, str | None) or reason not in ("stop", "length"):
        raise _wrong(
            f"a choice with finish_reason {first_line(str(reason))!r} and text of {type(text).__name__}", where
        )
    completion = Completion(text or "", tuple(ids), logprobs, prompt, version or "", reason == "stop")
    return Answer(completion, None if prompt_ids is None else tuple(prompt_ids))


def _integers(values: Any) -> bool:
    whole = isinstance(values, list) and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values)
    return whole


def _wrong(what: str, where: str) -> PolicyError:
    return PolicyError(f"the server's answer is wrong: {what}", where=where, fix="see the server's log")
