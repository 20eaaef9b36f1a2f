"""The wire form of a request for completions: OpenAI's chat completions, and what `vllm serve` adds to them.

Both ends read and write it here, so what one says is what the other understands. The fields added to OpenAI's are
vLLM's: `return_token_ids` and `ignore_eos`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from flywheel.agent.context import Context, Image, Message
from flywheel.errors import BadInput, first_line
from flywheel.policy.encoding import plain
from flywheel.policy.protocol import Sampling

MAX_SAMPLES = 128  # of one request
_SEEDS = 2**63
# Fields of the API that change what is sampled, and that only have an effect here by their neutral values.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "top_logprobs": (0,),
    "stop": ([],),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none",),
    "response_format": ({"type": "text"},),
    "reasoning_effort": ("none",),
}
# Fields that say something of the caller alone.
_PASSED_OVER = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
    "request_id",
)


@dataclass(frozen=True)
class Asked:
    """One request, read. samples: one for each answer that is wanted; they differ in their seeds alone."""

    model: str
    context: Context
    samples: tuple[Sampling, ...]
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


class _Request(_Part):
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


def write_request(context: Context, sampling: Sampling, model: str) -> dict[str, Any]:
    """The request for one completion with its token ids and log-probabilities.

    The neutral values are spoken out because a server may have others as its defaults (vLLM takes those of the
    checkpoint's generation_config.json), and training assumes the model's own distribution. Control tokens that text
    spells are broken up, as `Encoder` does it.
    """
    messages = [
        {
            "role": message.role,
            "content": [
                {"type": "image_url", "image_url": {"url": data_url(part.png)}}
                if isinstance(part, Image)
                else {"type": "text", "text": plain(part)}
                for part in message.parts
            ],
        }
        for message in context
    ]
    return {
        "model": model,
        "messages": messages,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_new_tokens,
        "seed": sampling.seed,
        "ignore_eos": sampling.ignore_end,
        "logprobs": True,
        "return_token_ids": True,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    }


def read_request(raw: bytes, *, max_new_tokens: int, seed: Callable[[], int]) -> Asked:
    """A request's body, read and checked. `max_new_tokens` and `seed` stand in for what it leaves out.

    Raises BadInput that names the field: for what is not JSON, a missing or wrong field, a field that would change
    the answer and is not honoured here, a field that nobody knows, and a picture that is not a data: URL.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {first_line(str(error))}", fix="send a JSON object") from None
    if not isinstance(body, dict):
        raise BadInput("the body is not a JSON object", fix='for example {"model": ..., "messages": [...]}')
    try:
        request = _Request.model_validate(_understood(body))
    except ValidationError as error:
        raise _bad_field(error) from None
    limit = request.max_completion_tokens or request.max_tokens or max_new_tokens
    first = seed() if request.seed is None else request.seed
    context = tuple(
        Message(
            message.role, tuple(_part(part, f"messages.{at}.content.{n}") for n, part in enumerate(message.content))
        )
        for at, message in enumerate(request.messages)
    )
    samples = tuple(
        Sampling(request.temperature, limit, _wrap(first + number), request.ignore_eos) for number in range(request.n)
    )
    return Asked(
        request.model,
        context,
        samples,
        request.logprobs,
        request.return_token_ids,
        request.stream,
        request.stream_options.include_usage,
    )


def _wrap(seed: int) -> int:
    """The seed of a further sample, back into 64 bits."""
    return (seed + _SEEDS) % (2 * _SEEDS) - _SEEDS


def _understood(body: dict[str, Any]) -> dict[str, Any]:
    """The fields that are read. In this API null means: not given."""
    kept = {}
    for name, value in body.items():
        if value is None or name in _PASSED_OVER:
            continue
        if name in _NEUTRAL:
            if value not in _NEUTRAL[name]:
                raise BadInput(
                    f"{name} is not honoured by this server",
                    where=name,
                    fix=f"leave it out, or give {json.dumps(_NEUTRAL[name][0])}",
                )
            continue
        if name not in _Request.model_fields:
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
    return BadInput(f"{fault['msg']}{others}", where=where, fix="see POST /v1/chat/completions in docs/serving.md")


def _part(part: _Text | _Picture, where: str) -> str | Image:
    if isinstance(part, _Picture):
        return Image(_picture(part.image_url.url, f"{where}.image_url.url"))
    try:
        part.text.encode()
    except UnicodeEncodeError:
        raise BadInput(
            "the text holds half a surrogate pair", where=f"{where}.text", fix="send whole characters"
        ) from None
    return part.text


def data_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _picture(url: str, where: str) -> bytes:
    scheme, _, rest = url.partition(":")
    if scheme.lower() != "data":
        raise BadInput(
            f"a picture's address is not fetched ({scheme[:20]}: ...): this server makes no outgoing requests",
            where=where,
            fix="send the picture itself, as data:image/png;base64,...",
        )
    head, comma, payload = rest.partition(",")
    if not comma or not head.lower().startswith("image/") or not head.lower().endswith(";base64"):
        raise BadInput("not a picture in base64", where=where, fix="send data:image/png;base64,...")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadInput(
            f"the picture is not base64: {first_line(str(error))}", where=where, fix="encode it again"
        ) from None
