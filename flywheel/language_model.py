"""A language model behind an OpenAI-compatible endpoint: for refinement, obfuscation, judging, digests of memory."""

from __future__ import annotations

import os
import time
from typing import Protocol

import httpx

from flywheel.errors import BadInput, FlywheelError
from flywheel.settings import LanguageModel as LanguageModelSettings


class LanguageModelError(FlywheelError):
    """The language model could not answer."""


class LanguageModelTimeout(LanguageModelError):
    """The language model did not answer within its deadline."""


class LanguageModel(Protocol):
    """name: the model, as it is written into the data."""

    name: str

    def complete(self, system: str, user: str) -> str:
        """The answer's text. Raises LanguageModelError, LanguageModelTimeout."""


_PASSING = {408, 409, 429, 500, 502, 503, 504}  # states of a server that may pass
_PAUSE_S = 0.2


class OpenAIModel:
    """Chat completions of a server such as `vllm serve`. Temperature 0, so that a stage run again says the same."""

    def __init__(self, settings: LanguageModelSettings) -> None:
        self.name, self._settings = settings.model, settings
        self._url = settings.endpoint.rstrip("/") + "/chat/completions"

    def complete(self, system: str, user: str) -> str:
        """Tried again, with growing pauses, while the server is busy or broken, until `timeout_s` has passed."""
        deadline = time.monotonic() + self._settings.timeout_s
        fault, pause = "no answer", _PAUSE_S
        for _ in range(self._settings.retries + 1):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                answer = httpx.post(self._url, json=self._body(system, user), headers=self._headers(), timeout=left)
            except httpx.TimeoutException:
                break
            except httpx.InvalidURL as error:
                raise BadInput(f"not an address: {error}", where="language_model.endpoint") from None
            except httpx.HTTPError as error:
                fault = f"{type(error).__name__}: {error}"
            else:
                if answer.status_code not in _PASSING:
                    return self._text(answer)
                fault = f"status {answer.status_code}"
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause *= 2
        else:
            raise LanguageModelError(
                f"the language model failed {self._settings.retries + 1} times: {fault}",
                where=self._url,
                fix="see whether the server runs, or leave language_model.endpoint empty",
            )
        raise LanguageModelTimeout(
            f"the language model did not answer in {self._settings.timeout_s:g} s",
            where=self._url,
            fix="raise language_model.timeout_s",
        )

    def _body(self, system: str, user: str) -> dict:
        texts = (
            text.encode("utf-8", "replace").decode() for text in (system, user)
        )  # half a surrogate pair is no JSON
        messages = [{"role": role, "content": text} for role, text in zip(("system", "user"), texts, strict=True)]
        return {"model": self._settings.model, "messages": messages, "temperature": 0, "max_tokens": 256}

    def _headers(self) -> dict[str, str]:
        key = os.environ.get(self._settings.key_variable, "")
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _text(self, answer: httpx.Response) -> str:
        if answer.status_code != 200:
            raise LanguageModelError(
                f"the language model refused: status {answer.status_code}: {answer.text[:200]}",
                where=self._url,
                fix="see language_model.model, and the key in the variable that language_model.key_variable names",
            )
        try:
            text = answer.json()["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError):
            raise LanguageModelError(
                f"not an answer of a chat completion: {answer.text[:200]}",
                where=self._url,
                fix="the endpoint ends in /v1 for most servers",
            ) from None
        if not isinstance(text, str):
            raise LanguageModelError("the answer holds no text", where=self._url)
        return text
