"""Read and write requests and answers of OpenAI's chat completions API, with the fields that `vllm serve` adds."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from flywheel.agent.prompt import Context, Image, Message
from flywheel.policy.encoding import break_control_tokens
from flywheel.policy.protocol import Completion, SamplingParams
from flywheel.utils.errors import BadInput, PolicyError, first_line

# Requests. The fields that OpenAI does not have are vLLM's: `return_token_ids`, `ignore_eos`, `top_k`, `min_p` and
# `repetition_penalty`.

MAX_SAMPLES = 128  # most answers to one request
_MAX_STOPS = 16
_SEEDS = 2**63
# Fields of the API that this server does not implement. A field of `neutral` would change the answer, so only the
# listed values, which change nothing, are accepted; a field of `ignored` may have any value.
_FIELDS = json.loads(resources.files("flywheel.policy").joinpath("chat_fields.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class ChatRequest:
    """Hold a parsed request of chat completions.

    samples: parameters of each requested answer; they differ in their seeds only. logprobs, token_ids: whether the
    answer includes them. usage_in_stream: whether a stream ends with its token counts.
    """

    model: str
    context: Context
    samples: tuple[SamplingParams, ...]
    logprobs: bool
    token_ids: bool
    stream: bool
    usage_in_stream: bool


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Text(_Part):
    type: Literal["text"]
    text: str


class _Url(_Part):
    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class _Picture(_Part):
    type: Literal["image_url"]
    image_url: _Url


class _Message(_Part):
    role: Literal["system", "user", "assistant"]
    content: list[Annotated[_Text | _Picture, Field(discriminator="type")]]
    name: str = ""

    @field_validator("content", mode="before")
    @classmethod
    def _as_parts(cls, content: Any) -> Any:
        return [{"type": "text", "text": content}] if isinstance(content, str) else content


class _StreamOptions(_Part):
    include_usage: bool = False


class _RequestBody(_Part):
    model: str
    messages: list[_Message] = Field(min_length=1)
    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=-_SEEDS, lt=_SEEDS)
    n: int = Field(1, ge=1, le=MAX_SAMPLES)
    logprobs: bool = False
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    return_token_ids: bool = False
    ignore_eos: bool = False
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0, allow_inf_nan=False)
    stop: list[Annotated[str, Field(min_length=1)]] = Field([], max_length=_MAX_STOPS)

    @field_validator("stop", mode="before")
    @classmethod
    def _as_list(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop


def format_chat_request(context: Context, sampling: SamplingParams, model: str) -> dict[str, Any]:
    """Build the body of a request for one completion with its token ids and log-probabilities, as a JSON object.

    context: the prompt. sampling: its parameters; `action` and `session` are not sent. model: its name at the server.

    Parameters are sent even where they change nothing, because a server may have other defaults (vLLM takes those of
    the checkpoint's generation_config.json), and training assumes the model's own distribution.
    """

    def written(part: str | Image) -> dict[str, Any]:
        if isinstance(part, Image):
            return {"type": "image_url", "image_url": {"url": png_data_url(part.png)}}
        return {"type": "text", "text": break_control_tokens(part)}

    return {
        "model": model,
        "messages": [{"role": message.role, "content": list(map(written, message.parts))} for message in context],
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_new_tokens,
        "seed": sampling.seed,
        "ignore_eos": sampling.ignore_end,
        "logprobs": True,
        "return_token_ids": True,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        **({"stop": list(sampling.stop)} if sampling.stop else {}),
    }


def parse_chat_request(raw: bytes, *, max_new_tokens: int, seed: Callable[[], int]) -> ChatRequest:
    """Parse and check the body of a request of chat completions.

    raw: JSON, as received. max_new_tokens: limit where the request has none. seed: returns the seed where the request
    has none. Raises BadInput, which names the field, for a body that is not JSON, a missing or wrong field, a field
    that would change the answer and is not implemented, an unknown field, and a picture that is not a data: URL.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {first_line(str(error))}", fix="send a JSON object") from None
    if not isinstance(body, dict):
        raise BadInput("the body is not a JSON object", fix='for example {"model": ..., "messages": [...]}')
    try:
        request = _RequestBody.model_validate(_understood(body))
    except ValidationError as error:
        raise _bad_field(error) from None
    limit = request.max_completion_tokens or request.max_tokens or max_new_tokens
    first = seed() if request.seed is None else request.seed
    context = []
    for at, message in enumerate(request.messages):
        parts = (_part(part, f"messages.{at}.content.{n}") for n, part in enumerate(message.content))
        context.append(Message(message.role, tuple(parts)))
    seeds = ((first + number + _SEEDS) % (2 * _SEEDS) - _SEEDS for number in range(request.n))  # back into 64 bits
    sampling = SamplingParams(
        temperature=request.temperature,
        max_new_tokens=limit,
        ignore_end=request.ignore_eos,
        top_p=request.top_p,
        top_k=max(request.top_k, 0),
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        stop=tuple(request.stop),
    )
    samples = tuple(replace(sampling, seed=one) for one in seeds)
    return ChatRequest(
        request.model,
        tuple(context),
        samples,
        request.logprobs,
        request.return_token_ids,
        request.stream,
        request.stream_options.include_usage,
    )


def _understood(body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `_RequestBody` in `body`; in this API null means: not given. Raises BadInput for others that
    are unknown or would change the answer."""
    kept = {}
    for name, value in body.items():
        if value is None or name in _FIELDS["ignored"]:
            continue
        if (neutral := _FIELDS["neutral"].get(name)) is not None:
            if value not in neutral:
                fix = f"leave it out, or give {json.dumps(neutral[0])}"
                raise BadInput(f"{name} is not honoured by this server", where=name, fix=fix)
            continue
        if name not in _RequestBody.model_fields:
            raise BadInput(f"Unrecognized request argument supplied: {name[:80]}", where=name[:80], fix="leave it out")
        kept[name] = value
    return kept


def _bad_field(error: ValidationError) -> BadInput:
    fault, *more = error.errors()
    place = list(fault["loc"])
    if len(place) > 4 and place[2] == "content":
        del place[4]  # the part's type, which pydantic puts between the part and its field
    where = ".".join(map(str, place))
    others = f" (and {len(more)} more)" if more else ""
    fix = "see POST /v1/chat/completions in docs/serving.md#flywheel-model-serve"
    return BadInput(f"{fault['msg']}{others}", where=where, fix=fix)


def _part(part: _Text | _Picture, where: str) -> str | Image:
    if isinstance(part, _Picture):
        return Image(_picture(part.image_url.url, f"{where}.image_url.url"))
    try:
        part.text.encode()
    except UnicodeEncodeError:
        fix = "send whole characters"
        raise BadInput("the text holds half a surrogate pair", where=f"{where}.text", fix=fix) from None
    return part.text


def png_data_url(png: bytes) -> str:
    """Return the bytes of a PNG as a data: URL."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _picture(url: str, where: str) -> bytes:
    scheme, _, rest = url.partition(":")
    if scheme.lower() != "data":
        what = f"a picture's address is not fetched ({scheme[:20]}: ...): this server makes no outgoing requests"
        raise BadInput(what, where=where, fix="send the picture itself, as data:image/png;base64,...")
    head, comma, payload = rest.partition(",")
    if not comma or not head.lower().startswith("image/") or not head.lower().endswith(";base64"):
        raise BadInput("not a picture in base64", where=where, fix="send data:image/png;base64,...")
    try:
        return base64.b64decode(payload, validate=True)
    except ValueError as error:
        what = f"the picture is not base64: {first_line(str(error))}"
        raise BadInput(what, where=where, fix="encode it again") from None


# Answers. The fields that OpenAI does not have are vLLM's `prompt_token_ids` in an answer and `token_ids` in each of
# its choices, and this project's `weight_version` in each choice.


@dataclass(frozen=True)
class ChatAnswer:
    """Hold a parsed answer of chat completions with one choice.

    completion: its weight_version is "" where the server does not report it. prompt_token_ids: [prompt tokens]; None
    where the server does not report them. model: the server's name of the model that answered.
    """

    completion: Completion
    prompt_token_ids: tuple[int, ...] | None
    model: str


def format_chat_answer(
    head: dict[str, Any],
    asked: ChatRequest,
    completions: Sequence[Completion],
    prompt_ids: Sequence[int],
    spell: Callable[[int], str],
) -> dict[str, Any]:
    """Build the body of an answer of chat completions, as a JSON object.

    head: fields id, created and model. asked: the request. completions: one for each requested answer. prompt_ids:
    token ids of the prompt. spell: returns the text of one token id.
    """
    choices = [
        {"index": index, "message": {"role": "assistant", "content": one.text}, **_rest_of_choice(asked, one, spell)}
        for index, one in enumerate(completions)
    ]
    body = {**head, "object": "chat.completion", "choices": choices, "usage": _usage(completions)}
    if asked.token_ids:
        body["prompt_token_ids"] = list(prompt_ids)
    return body | {"system_fingerprint": completions[0].weight_version}


def format_chat_chunks(
    head: dict[str, Any],
    asked: ChatRequest,
    completions: Sequence[Completion],
    prompt_ids: Sequence[int],
    spell: Callable[[int], str],
) -> Iterator[dict[str, Any]]:
    """Yield an answer as the chunks of a stream, one chunk per choice; arguments as in `format_chat_answer`."""
    head = {**head, "object": "chat.completion.chunk"}
    for index, completion in enumerate(completions):
        delta = {"role": "assistant", "content": completion.text}
        chunk = {**head, "choices": [{"index": index, "delta": delta, **_rest_of_choice(asked, completion, spell)}]}
        if asked.token_ids and index == 0:
            chunk["prompt_token_ids"] = list(prompt_ids)
        yield chunk | {"system_fingerprint": completion.weight_version}
    if asked.usage_in_stream:
        yield {**head, "choices": [], "usage": _usage(completions)}


def _rest_of_choice(asked: ChatRequest, completion: Completion, spell: Callable[[int], str]) -> dict[str, Any]:
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


def parse_chat_answer(body: Any, *, where: str) -> ChatAnswer:
    """Parse an answer of chat completions with one choice, its token ids and log-probabilities.

    body: the decoded JSON. where: URL of the server, for messages. Raises PolicyError that names what is missing or
    invalid.
    """
    try:
        (choice,) = body["choices"]
        ids, text, reason = choice.get("token_ids"), choice["message"]["content"], choice["finish_reason"]
        entries = (choice.get("logprobs") or {}).get("content")
        prompt, prompt_ids = body["usage"]["prompt_tokens"], body.get("prompt_token_ids")
        version = choice.get("weight_version", "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {first_line(str(error))}"
        raise _wrong(f"not an answer of a chat completion ({reason})", where) from None
    if ids is None:
        what = "the server gives no token ids, and training must not guess them from the text"
        fix = "use a server that honours return_token_ids: flywheel model serve, or vllm 0.10.2 and newer"
        raise PolicyError(what, where=where, fix=fix)
    if entries is None:
        fix = "use a server that honours logprobs"
        raise PolicyError("the server gives no log-probabilities", where=where, fix=fix)
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
        reason = first_line(str(reason))
        raise _wrong(f"a choice with finish_reason {reason!r} and text of {type(text).__name__}", where)
    completion = Completion(text or "", tuple(ids), logprobs, prompt, version or "", reason == "stop")
    prompted = None if prompt_ids is None else tuple(prompt_ids)
    return ChatAnswer(completion, prompted, str(body.get("model") or ""))


def _integers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values)


def _wrong(what: str, where: str) -> PolicyError:
    return PolicyError(f"the server's answer is wrong: {what}", where=where, fix="see the server's log")
