"""Ask a language model on an OpenAI-compatible server, and summarise an agent's history with it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import httpx

from flywheel import config
from flywheel.agent import history
from flywheel.config import LanguageModelSettings
from flywheel.policy.client.endpoint import ChatEndpoint
from flywheel.utils import processes
from flywheel.utils.errors import FlywheelError


class LanguageModelError(FlywheelError):
    """Signal that the language model could not answer."""


class LanguageModelTimeout(LanguageModelError):
    """Signal that the language model did not answer within its deadline."""


class LanguageModelEndpoint(ChatEndpoint):
    """Call the server at `language_model.endpoint`."""

    block, timeout = "language_model", LanguageModelTimeout
    failed = unreachable = refused = unknown = LanguageModelError
    passing: ClassVar = dict.fromkeys((408, 409, 429, 500, 502, 503, 504), LanguageModelError)


class OpenAIChatModel:
    """Ask a language model behind a server of chat completions, such as `vllm serve`.

    settings: block `language_model`. The attribute `name` is the model's name. Raises BadInput for an endpoint that is
    not an address.
    """

    def __init__(self, settings: LanguageModelSettings) -> None:
        self.name, self._settings = settings.model, settings
        self._endpoint = LanguageModelEndpoint(settings)
        self._url = f"{self._endpoint.url}/chat/completions"

    def complete(self, system: str, user: str) -> str:
        """Return the model's answer (256 tokens at most) to a system and a user message, at temperature 0.

        system, user: texts of the two messages. Blocks; must not be called from a running event loop (RuntimeError).
        Raises LanguageModelTimeout after `language_model.timeout_s`, LanguageModelError for a server that fails and an
        answer without text.
        """
        (answer,) = self.complete_all([(system, user)], [0.0])
        if isinstance(answer, LanguageModelError):
            raise answer
        return answer

    def complete_all(
        self, prompts: Sequence[tuple[str, str]], temperatures: Sequence[float]
    ) -> list[str | LanguageModelError]:
        """Return the model's answers (256 tokens at most each) to `prompts`, all asked at once, in their order.

        In place of an answer that failed is its LanguageModelError (LanguageModelTimeout after
        `language_model.timeout_s`). prompts: (system, user) messages. temperatures: one for each; 0 is greedy. Blocks;
        must not be called from a running event loop (RuntimeError).
        """
        return processes.run_until_sigterm(self._complete_all(prompts, temperatures))

    async def _complete_all(
        self, prompts: Sequence[tuple[str, str]], temperatures: Sequence[float]
    ) -> list[str | LanguageModelError]:
        async def one(prompt: tuple[str, str], temperature: float) -> str | LanguageModelError:
            try:
                return self._read(await self._ask(client, *prompt, temperature))
            except LanguageModelError as error:
                return error

        async with self._endpoint.client() as client:
            return await asyncio.gather(*map(one, prompts, temperatures))

    def _read(self, answer: Any) -> str:
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            what = f"not an answer of a chat completion: {str(answer)[:200]}"
            fix = "the endpoint ends in /v1 for most servers"
            raise LanguageModelError(what, where=self._url, fix=fix) from None
        if not isinstance(text, str):
            raise LanguageModelError("the answer holds no text", where=self._url)
        return text

    async def _ask(self, client: httpx.AsyncClient, system: str, user: str, temperature: float) -> Any:
        messages = [  # half a surrogate pair cannot be encoded, so it is replaced
            {"role": role, "content": text.encode("utf-8", "replace").decode()}
            for role, text in (("system", system), ("user", user))
        ]
        body = {"model": self._settings.model, "messages": messages, "temperature": temperature, "max_tokens": 256}
        return await self._endpoint.call(client, "POST", self._url, body, timeout_s=self._settings.timeout_s)


log = logging.getLogger(__name__)

_LINE_CHARACTERS = 400  # most characters of a step in the model's prompt
_CACHE = 4096  # most digests that a process caches


class ModelSummarizer:
    """Summarise old steps of a trajectory by a language model, once for each `every` steps.

    model: asked for digests. characters: limit of a digest. Answers are cached by prompt, so samples of one task with
    equal first steps get the same digest. Where the model fails or answers nothing, rules write this digest, which the
    log and the digest's `by` report; the model is asked again for the next digest. Each digest is stored with the step
    that showed it, so training does not ask again.
    """

    every = 8

    def __init__(self, model: OpenAIChatModel, characters: int) -> None:
        self.name, self._model, self._characters = model.name, model, characters
        self._rules = history.RuleSummarizer(characters)
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def digest(self, before: history.HistorySummary, aged: Sequence[history.PastStep]) -> history.HistorySummary:
        """Return a digest of the digest `before` and of the steps `aged` since.

        It blocks while the model answers, so it must not be called from a running event loop (RuntimeError).
        """
        ruled = self._rules.digest(before, aged)
        try:
            text = self._ask(before, aged)
        except LanguageModelError as error:
            log.warning("a digest of %d steps is by rules: %s", ruled.steps, error)
            by = f"{history.RULES}, since {self.name} failed: {error.what}"
            return history.HistorySummary(ruled.steps, ruled.text, by, ruled.counts)
        return history.HistorySummary(ruled.steps, text, self.name, ruled.counts)

    def _ask(self, before: history.HistorySummary, aged: Sequence[history.PastStep]) -> str:
        system = _SYSTEM.format(characters=self._characters)
        told = (history.summarise_step(step, _LINE_CHARACTERS) for step in aged)
        lines = (f"{number}. {line}" for number, line in enumerate(told, before.steps + 1))
        user = _USER.format(steps=before.steps, record=before.text or "Nothing yet.", lines="\n".join(lines))
        key = hashlib.sha256(f"{system}\0{user}".encode("utf-8", "replace")).hexdigest()
        with self._lock:
            if key in self._known:
                return self._known[key]
        text = history.truncate_end(history.collapse_whitespace(self._model.complete(system, user)), self._characters)
        if not text:
            raise LanguageModelError("the language model answered nothing", where="memory")
        with self._lock:
            if len(self._known) >= _CACHE:
                self._known.pop(next(iter(self._known)))
            return self._known.setdefault(key, text)  # of two concurrent answers all callers get the first


_SYSTEM = """You keep the record of a GUI agent's work, which it reads instead of its older steps. Write the new \
record: the old one and the steps since, as one paragraph of plain text, at most {characters} characters. Keep what \
later steps may need: values that were read, text that was typed, pages that were visited, what failed, what is done. \
Leave out what no longer matters. Answer with the record alone."""

_USER = """Record of steps 1 to {steps}:
{record}

Steps since:
{lines}"""


def open_summarizer(settings: config.Settings) -> history.Summarizer:
    """Open what summarises an episode's old steps for the prompt, by rules or a language model (`policy.summarizer`).

    No server is called yet, and there is nothing to close. settings: blocks `policy` and `language_model` are read. All
    callers in a process share a model's answers. Raises BadInput for a `language_model.endpoint` that is needed and is
    not an address.
    """
    policy = settings.policy
    if policy.summarizer == "rules":
        return history.RuleSummarizer(policy.summary_max_chars)
    return _model_summarizer(settings.language_model, policy.summary_max_chars)


@lru_cache(maxsize=8)
def _model_summarizer(model: config.LanguageModelSettings, characters: int) -> ModelSummarizer:
    return ModelSummarizer(OpenAIChatModel(model), characters)
