"""The policy in this process: transformers on one worker thread, requests batched as they come.

One thread owns the model, so the event loop is never blocked and requests, weight swaps and the end follow one
another in the order they were asked for. Callers may sit on different event loops.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from flywheel import settings as config
from flywheel.errors import FlywheelError, PolicyError, PolicyTimeout
from flywheel.policy.encoding import Encoded, Encoder
from flywheel.policy.model import digest, load_model
from flywheel.policy.protocol import Completion, Context, Sampling
from flywheel.policy.sampling import Sampled, generate

T = TypeVar("T")
log = logging.getLogger(__name__)

GATHER_S = 0.003  # an idle worker waits this long for company before it answers a request


@dataclass(frozen=True)
class _Request:
    context: Context
    sampling: Sampling
    answer: Future[Completion]


@dataclass(frozen=True)
class _Load:
    checkpoint: Path
    answer: Future[None]


class EmbeddedPolicy:
    """`Policy` over a checkpoint folder. Raises ModelError for a folder that cannot be loaded."""

    def __init__(self, folder: Path | str, policy: config.Policy) -> None:
        self._policy = policy
        self._open(Path(folder))
        self._jobs: queue.Queue[_Request | _Load | None] = queue.Queue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="policy", daemon=True)
        self._thread.start()

    def _open(self, folder: Path) -> None:
        model, encoder, version = load_model(folder), Encoder.from_folder(folder), digest(folder)
        self._model, self._encoder, self._version = model, encoder, version

    @property
    def weight_version(self) -> str:
        return self._version

    @property
    def encoder(self) -> Encoder:
        return self._encoder

    async def complete(self, context: Context, sampling: Sampling) -> Completion:
        """Answer one context. Raises PolicyTimeout after `policy.timeout_s`, BadInput for a broken screen."""
        answer: Future[Completion] = Future()
        return await self._ask(_Request(context, sampling, answer), answer)

    async def load(self, checkpoint: Path) -> None:
        answer: Future[None] = Future()
        await self._ask(_Load(Path(checkpoint), answer), answer)

    async def _ask(self, job: _Request | _Load, answer: Future[T]) -> T:
        if self._closed:
            raise PolicyError("the policy is closed", where="embedded policy")
        self._jobs.put(job)
        try:
            async with asyncio.timeout(self._policy.timeout_s):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise PolicyTimeout(
                f"no answer in {self._policy.timeout_s:g} s",
                where="embedded policy",
                fix="raise policy.timeout_s",
            ) from None

    async def close(self) -> None:
        """End the worker once it has answered what it has. May be called twice."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        await asyncio.to_thread(self._thread.join, self._policy.timeout_s)

    # The worker thread.

    def _work(self) -> None:
        job: _Request | _Load | None
        held: list[_Request | _Load | None] = []
        while True:
            job = held.pop() if held else self._jobs.get()
            if job is None:
                break
            if isinstance(job, _Load):
                self._swap(job)
                continue
            batch = [job]
            while len(batch) < self._policy.batch:
                try:
                    job = self._jobs.get(timeout=GATHER_S)
                except queue.Empty:
                    break
                if not isinstance(job, _Request):
                    held.append(job)
                    break
                batch.append(job)
            self._answer(batch)
        while not self._jobs.empty():  # asked for after the end
            late = self._jobs.get()
            if late is not None and late.answer.set_running_or_notify_cancel():
                late.answer.set_exception(PolicyError("the policy is closed", where="embedded policy"))

    def _swap(self, job: _Load) -> None:
        if not job.answer.set_running_or_notify_cancel():
            return
        try:
            self._open(job.checkpoint)
            job.answer.set_result(None)
        except FlywheelError as error:
            job.answer.set_exception(error)

    def _answer(self, batch: list[_Request]) -> None:
        """Answer a batch. A request that cannot be encoded fails alone; one that nobody awaits is left out."""
        wanted: list[tuple[_Request, Encoded]] = []
        for request in batch:
            if not request.answer.set_running_or_notify_cancel():
                continue
            try:
                encoded = self._encoder.encode(request.context)
                if len(encoded) + request.sampling.max_new_tokens > self._limit:
                    raise PolicyError(f"a prompt of {len(encoded)} tokens does not fit", where="embedded policy")
                wanted.append((request, encoded))
            except FlywheelError as error:
                request.answer.set_exception(error)
            except Exception as error:
                request.answer.set_exception(PolicyError(f"cannot encode: {error}", where="embedded policy"))
        if not wanted:
            return
        try:
            samples = generate(
                self._model, self._encoder.end_id, [e for _, e in wanted], [r.sampling for r, _ in wanted]
            )
        except Exception as error:
            log.exception("a batch of %d failed", len(wanted))
            for request, _ in wanted:
                request.answer.set_exception(PolicyError(f"the model failed: {error}", where="embedded policy"))
            return
        for (request, encoded), sample in zip(wanted, samples, strict=True):
            request.answer.set_result(self._completion(encoded, sample))

    @property
    def _limit(self) -> int:
        return self._model.config.get_text_config().max_position_embeddings

    def _completion(self, encoded: Encoded, sample: Sampled) -> Completion:
        end = self._encoder.end_id
        return Completion(
            text=self._encoder.decode([token for token in sample.token_ids if token != end]),
            token_ids=sample.token_ids,
            logprobs=sample.logprobs,
            prompt_tokens=len(encoded),
            weight_version=self._version,
            finished=bool(sample.token_ids) and sample.token_ids[-1] == end,
        )
