"""Ask a language model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from typing import Any, Protocol

from flywheel.config import LanguageModelSettings
from flywheel.policy.client.endpoint import ChatEndpoint, EndpointErrors
from flywheel.utils import processes
from flywheel.utils.errors import FlywheelError


class LanguageModelError(FlywheelError):
    """The language model could not answer."""


class LanguageModelTimeout(LanguageModelError):
    """The language model did not answer within its deadline."""


class ChatModel(Protocol):
    """name: the model, as it is written into the data."""

    name: str

    def complete(self, system: str, user: str) -> str:
        """The answer's text. Raises LanguageModelError, LanguageModelTimeout."""


_ERRORS = EndpointErrors(
    failed=LanguageModelError,
    unreachable=LanguageModelError,
    timeout=LanguageModelTimeout,
    refused=LanguageModelError,
    unknown=LanguageModelError,
    passing=dict.fromkeys((408, 409, 429, 500, 502, 503, 504), LanguageModelError),
)


class OpenAIChatModel:
    """Chat completions of a server such as `vllm serve`. Temperature 0, so that a stage run again says the same.

    Raises BadInput for an endpoint that is not an address.
    """

    def __init__(self, settings: LanguageModelSettings) -> None:
        self.name, self._settings = settings.model, settings
        self._endpoint = ChatEndpoint(settings, "language_model", _ERRORS)
        self._url = f"{self._endpoint.url}/chat/completions"

    def complete(self, system: str, user: str) -> str:
        """`language_model.timeout_s` is the deadline, every try included. Must not be called from a running event
        loop, which it would block."""
        return self._text(processes.run_until_sigterm(self._ask(self._body(system, user))))

    async def _ask(self, body: dict) -> Any:
        async with self._endpoint.client() as client:
            return await self._endpoint.call(client, "POST", self._url, body, timeout_s=self._settings.timeout_s)

    def _body(self, system: str, user: str) -> dict:
        texts = (
            text.encode("utf-8", "replace").decode() for text in (system, user)
        )  # half a surrogate pair is no JSON
        messages = [{"role": role, "content": text} for role, text in zip(("system", "user"), texts, strict=True)]
        return {"model": self._settings.model, "messages": messages, "temperature": 0, "max_tokens": 256}

    def _text(self, answer: Any) -> str:
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise LanguageModelError(
                f"not an answer of a chat completion: {str(answer)[:200]}",
                where=self._url,
                fix="the endpoint ends in /v1 for most servers",
            ) from None
        if not isinstance(text, str):
            raise LanguageModelError("the answer holds no text", where=self._url)
        return text
