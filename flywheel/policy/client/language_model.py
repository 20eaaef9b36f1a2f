"""Ask a language model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from flywheel import config
from flywheel.agent.history import (
    RULES,
    HistorySummary,
    PastStep,
    RuleSummarizer,
    Summarizer,
    collapse_whitespace,
    summarise_step,
    truncate_end,
)
from flywheel.config import LanguageModelSettings
from flywheel.policy.client.endpoint import ChatEndpoint, EndpointErrors
from flywheel.utils import processes
from flywheel.utils.errors import FlywheelError


class LanguageModelError(FlywheelError):
    """The language model could not answer."""


class LanguageModelTimeout(LanguageModelError):
    """The language model did not answer within its deadline."""


class ChatModel(Protocol):
    """Answer a prompt with a text. name: of the model, as it is written into the data."""

    name: str

    def complete(self, system: str, user: str) -> str:
        """Return the model's answer. system, user: texts of the two messages.

        Raises LanguageModelTimeout after the deadline, LanguageModelError for a server that fails.
        """


_ERRORS = EndpointErrors(
    failed=LanguageModelError,
    unreachable=LanguageModelError,
    timeout=LanguageModelTimeout,
    refused=LanguageModelError,
    unknown=LanguageModelError,
    passing=dict.fromkeys((408, 409, 429, 500, 502, 503, 504), LanguageModelError),
)


class OpenAIChatModel:
    """Ask a server of chat completions such as `vllm serve`, at temperature 0, so that a stage run again says the same.

    Raises BadInput for an endpoint that is not an address.
    """

    def __init__(self, settings: LanguageModelSettings) -> None:
        self.name, self._settings = settings.model, settings
        self._endpoint = ChatEndpoint(settings, "language_model", _ERRORS)
        self._url = f"{self._endpoint.url}/chat/completions"

    def complete(self, system: str, user: str) -> str:
        """Return the model's answer. system, user: texts of the two messages.

        `language_model.timeout_s` is the deadline, all tries included. Must not be called from a running event loop,
        which it would block. Raises LanguageModelTimeout after the deadline, LanguageModelError for a server that
        fails.
        """
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


# Summaries of an episode's older steps (section 2.1). The model gets the digest so far and the steps that have aged
# since, never the whole trajectory.

log = logging.getLogger(__name__)

_LINE_CHARACTERS = 400  # of each step that a language model gets
_CACHE = 4096  # digests that a process keeps


class ModelSummarizer:
    """By a language model, which is asked once for each `every` steps of a trajectory.

    Answers are kept by what was asked, so samples of one task that began alike read the same digest. Where the model
    fails, or answers nothing, the rules take its place for this digest: the log and `by` say so, and it is asked
    again when the next steps have aged. What was shown is stored with the step, so training never asks for it again.
    """

    every = 8

    def __init__(self, model: ChatModel, characters: int) -> None:
        self.name, self._model, self._characters = model.name, model, characters
        self._rules = RuleSummarizer(characters)
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def digest(self, before: HistorySummary, aged: Sequence[PastStep]) -> HistorySummary:
        """Ask the model for the digest of what is `before` and of the `aged` steps since.

        Blocks while it answers, `language_model.timeout_s` at most; where it fails, the digest is by rules and says so.
        """
        ruled = self._rules.digest(before, aged)
        try:
            text = self._ask(before, aged)
        except LanguageModelError as error:
            log.warning("a digest of %d steps is by rules: %s", ruled.steps, error)
            return HistorySummary(
                ruled.steps, ruled.text, f"{RULES}, since {self.name} failed: {error.what}", ruled.counts
            )
        return HistorySummary(ruled.steps, text, self.name, ruled.counts)

    def _ask(self, before: HistorySummary, aged: Sequence[PastStep]) -> str:
        system = _SYSTEM.format(characters=self._characters)
        lines = (f"{before.steps + n}. {summarise_step(step, _LINE_CHARACTERS)}" for n, step in enumerate(aged, 1))
        user = _USER.format(steps=before.steps, record=before.text or "Nothing yet.", lines="\n".join(lines))
        key = hashlib.sha256(f"{system}\0{user}".encode("utf-8", "replace")).hexdigest()
        with self._lock:
            if key in self._known:
                return self._known[key]
        text = truncate_end(collapse_whitespace(self._model.complete(system, user)), self._characters)
        if not text:
            raise LanguageModelError("the language model answered nothing", where="memory")
        with self._lock:
            if len(self._known) >= _CACHE:
                self._known.pop(next(iter(self._known)))
            return self._known.setdefault(key, text)  # the first of two answers that came at once is everyone's


_SYSTEM = """You keep the record of a GUI agent's work, which it reads instead of its older steps. Write the new \
record: the old one and the steps since, as one paragraph of plain text, at most {characters} characters. Keep what \
later steps may need: values that were read, text that was typed, pages that were visited, what failed, what is done. \
Leave out what no longer matters. Answer with the record alone."""

_USER = """Record of steps 1 to {steps}:
{record}

Steps since:
{lines}"""


def open_summarizer(settings: config.Settings) -> Summarizer:
    """Open the summarizer that `policy.summarizer` names; no server is asked yet, and there is nothing to close.

    All callers in a process share a model's answers. Raises BadInput for an endpoint that is not an address.
    """
    policy = settings.policy
    if policy.summarizer == "rules":
        return RuleSummarizer(policy.summary_max_chars)
    return _model_summarizer(settings.language_model, policy.summary_max_chars)


@lru_cache(maxsize=8)
def _model_summarizer(model: config.LanguageModelSettings, characters: int) -> ModelSummarizer:
    return ModelSummarizer(OpenAIChatModel(model), characters)
