"""Run the policy in this process: one worker thread batches the requests as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from flywheel import config
from flywheel.agent.prompt import Context, Image
from flywheel.policy.checkpoint import (
    check_checkpoint,
    checkpoint_digest,
    find_base_checkpoint,
    is_adapter,
    resolve_checkpoint,
)
from flywheel.policy.devices import is_small_model
from flywheel.policy.encoding import CutScreen, Encoder
from flywheel.policy.guided_decoding import AnswerConstraint, BegunConstraint, open_constraint
from flywheel.policy.inference.adapter_slot import AdapterSlot
from flywheel.policy.inference.cache import EncodedPrompt, LruCache, VisionEncoder, make_prompt
from flywheel.policy.inference.engine import PREFILL_TOKENS, BatchRow, InferenceEngine
from flywheel.policy.inference.fused_layers import TextPass, optimise_for_inference
from flywheel.policy.inference.int8_layers import quantize_for_inference
from flywheel.policy.model import load_model
from flywheel.policy.protocol import Completion, SamplingParams
from flywheel.policy.torch_threads import use_one_core_in_thread
from flywheel.utils.errors import BadInput, FlywheelError, PolicyBusy, PolicyError, PolicyTimeout

_TEXT_FILES = ("*.json", "*.jinja", "merges.txt")  # the files that an encoder is made from


@dataclass(frozen=True)
class LoadedCheckpoint:
    """Hold a checkpoint in memory, ready to answer.

    adapter: the adapter, if any, merged into the base. base: digest of the base's weights. text_pass: runs the language
    model faster; None where it does not know the model. constraint: the grammar of answers; None without guided
    decoding. version: digest of the weights. text: digest of the files that the encoder is made from. vision: digests
    of all that features of screens depend on: the vision tower's weights, the encoder.
    """

    model: PreTrainedModel
    adapter: AdapterSlot
    base: str
    text_pass: TextPass | None
    encoder: Encoder
    constraint: AnswerConstraint | None
    version: str
    text: str
    vision: tuple[str, ...]

    @classmethod
    def open(
        cls, folder: Path, policy: config.PolicySettings, version: str = "", before: LoadedCheckpoint | None = None
    ) -> LoadedCheckpoint:
        """Load the checkpoint in `folder`.

        policy: block `policy`. version: digest of its weights, if known. before: a loaded checkpoint that no longer
        answers: its encoder is used again if it is equal, and its model if the base is the same. Raises ModelError for
        a folder that cannot be loaded, and as `open_constraint`; `before` can then still answer.
        """
        check_checkpoint(folder)
        text, place = _text_digest(folder), find_base_checkpoint(folder)
        version, adapter = version or checkpoint_digest(folder), Path(folder) if is_adapter(folder) else None
        base = checkpoint_digest(place) if adapter else version
        quantized = policy.quantization != "none"  # its weights are rounded after the adapter is merged
        fits = before is not None and before.base == base and before.text == text and before.adapter.exchangeable
        if fits and not quantized and before.adapter.put(adapter):
            return replace(before, version=version, vision=(base, text, before.adapter.vision_digest))
        model = load_model(folder if quantized else place, dtype=policy.dtype, device=policy.device)
        if before is not None and before.text == text:
            encoder, constraint = before.encoder, before.constraint
        else:
            encoder = Encoder.from_folder(folder, max_image_side=policy.max_image_side)
            constraint = open_constraint(encoder, model.config, policy)
        text_pass = quantize_for_inference(model) if quantized else optimise_for_inference(model)
        slot = AdapterSlot(model)
        if not quantized:
            slot.put(adapter)
        vision = (version if quantized else base, text, slot.vision_digest)
        return cls(model, slot, base, text_pass, encoder, constraint, version, text, vision)

    def engine(
        self, policy: config.PolicySettings, threads: int = 0, vision: VisionEncoder | None = None
    ) -> InferenceEngine:
        """Return a new inference engine of the checkpoint, with empty caches.

        policy: block `policy`. threads: as in `InferenceEngine`. vision: of an engine whose checkpoint had the same
        `vision`: the screens that it knows stay known.
        """
        room = policy.cache_mb << 20
        return InferenceEngine(
            self.model,
            self.encoder.end_id,
            text_pass=self.text_pass,
            threads=threads,
            prefix_bytes=room // 2,
            vision_bytes=room // 4,
            share=room > 0,
            vision=vision,
        )

    def completion(self, row: BatchRow) -> Completion:
        """Return the completion of a row of the batch that has ended."""
        end = self.encoder.end_id
        text = self.encoder.decode([token for token in row.token_ids if token != end])
        at = _find_stop(text, row.sampling.stop)
        return Completion(
            text=text if at is None else text[:at],
            token_ids=tuple(row.token_ids),
            logprobs=tuple(row.logprobs),
            prompt_tokens=len(row.prompt),
            weight_version=self.version,
            finished=row.token_ids[-1] == end or at is not None,
            sampled_logprobs=tuple(row.tempered),
        )

    @property
    def limit(self) -> int:
        """Return the model's context length: most tokens of a prompt and its answer together."""
        return self.model.config.get_text_config().max_position_embeddings


def _text_digest(folder: Path) -> str:
    """Return a digest that is equal for two checkpoints with equal encoders; the index of the weights is left out."""
    sha, base = hashlib.sha256(), find_base_checkpoint(folder)
    for file in sorted(path for pattern in _TEXT_FILES for path in base.glob(pattern)):
        if not file.name.endswith("index.json"):
            sha.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return sha.hexdigest()


# A request is encoded on a helper thread, waits in a queue, joins the running batch between two steps and leaves it
# when it ends. One worker thread owns the model, so no event loop is blocked. Callers may use different event loops.

T = TypeVar("T")
log = logging.getLogger(__name__)

GATHER_S = 0.05  # as long as a small model on a CPU needs for a few passes over one screen
LOAD_S = 600.0  # deadline of a swap of weights, with the wait for the running batch: it reads gigabytes

_WHERE = "embedded policy"
_NO_PIXELS = np.empty((0, 0), np.float32)


@dataclass(eq=False)
class _Request:
    """Hold one caller's request. prompt: the context as encoded by `encoder`; None before that."""

    context: Context
    sampling: SamplingParams
    answer: Future[Completion]
    encoder: Encoder
    prompt: EncodedPrompt | None = None


@dataclass(frozen=True, eq=False)
class _Swap:
    folder: Path
    version: str
    answer: Future[None]


class EmbeddedPolicy:
    """Answer with a checkpoint that is loaded into this process (a `PolicyBackend`).

    folder: a checkpoint's folder, or a Hugging Face name. policy: block `policy`. At most policy.max_num_seqs requests
    run and policy.max_queue_size wait. policy.cache_mb bounds the caches: half of it is for keys and values of prompt
    prefixes, a quarter for screen features, an eighth each for encoded prompts and for screens cut into patches. Raises
    ModelError for a folder that cannot be loaded, and as `open_constraint`.
    """

    def __init__(self, folder: Path | str, policy: config.PolicySettings) -> None:
        self._policy = policy
        room = policy.cache_mb << 20
        self._prompts: LruCache[EncodedPrompt] = LruCache(room // 8)
        self._screens: LruCache[CutScreen] = LruCache(room // 8)
        self._lock = threading.Lock()  # guards what callers, encoding threads and the worker share
        self._asked = 0  # requests whose callers still wait
        self._encoding = 0  # requests that the worker has not received yet
        self._closed = False
        self._inbox: queue.SimpleQueue[_Request | _Swap | None] = queue.SimpleQueue()
        self._waiting: deque[_Request] = deque()
        self._swaps: deque[_Swap] = deque()
        self._encoders = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "policy-encoding")
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._start, args=(folder, opened), name="policy", daemon=True)
        self._thread.start()
        opened.result()

    @property
    def weight_version(self) -> str:
        """Return the digest of the weights that answer at present."""
        return self._loaded.version

    @property
    def encoder(self) -> Encoder:
        """Return the encoder of the checkpoint, with which training encodes prompts."""
        return self._loaded.encoder

    async def complete(self, context: Context, sampling: SamplingParams) -> Completion:
        """Answer one context.

        Raises PolicyTimeout after `policy.timeout_s`, PolicyBusy where `policy.max_queue_size` requests already wait,
        BadInput for a broken screen, PolicyError for a prompt that is too long, a model that fails, and once the policy
        is closed.
        """
        answer: Future[Completion] = Future()
        with self._count_request():
            self._encoders.submit(self._prepare, _Request(context, sampling, answer, self.encoder))
            return await self._wait(answer, "answer", self._policy.timeout_s, "raise policy.timeout_s")

    @contextlib.contextmanager
    def _count_request(self) -> Iterator[None]:
        """Count a caller's request within the block. Raises PolicyBusy where the queue is full, PolicyError once
        closed."""
        with self._lock:
            self._refuse_if_closed()
            if self._asked >= self._policy.max_num_seqs + self._policy.max_queue_size:
                fix = "ask again later, or raise policy.max_queue_size"
                raise PolicyBusy(f"{self._policy.max_queue_size} requests wait already", where=_WHERE, fix=fix)
            self._asked += 1
            self._encoding += 1
        try:
            yield
        finally:
            with self._lock:
                self._asked -= 1

    async def _wait(self, answer: Future[T], what: str, limit: float, fix: str = "") -> T:
        """Return the result of `answer`, awaited for at most `limit` seconds. Raises PolicyTimeout; the future is then
        cancelled, and the worker drops the request at its next step. what, fix: words of the error."""
        try:
            async with asyncio.timeout(limit):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise PolicyTimeout(f"no {what} in {limit:g} s", where=_WHERE, fix=fix) from None

    async def load(self, checkpoint: Path) -> None:
        """Swap the weights once the running batch has ended; waiting requests get the new weights.

        checkpoint: its folder. Raises ModelError for a folder that cannot be loaded, PolicyTimeout after `LOAD_S`,
        PolicyError where memory runs out, and once the policy is closed; the old weights then continue to answer, after
        a timeout until a swap that has begun ends.
        """
        folder, answer = Path(checkpoint), Future[None]()
        await asyncio.to_thread(check_checkpoint, folder)
        version = await asyncio.to_thread(checkpoint_digest, folder)
        with self._lock:
            self._refuse_if_closed()
            self._inbox.put(_Swap(folder, version, answer))
        await self._wait(answer, "swap of weights", LOAD_S)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise PolicyError("the policy is closed", where=_WHERE)

    async def close(self) -> None:
        """End the worker once all its requests are answered; return after `policy.timeout_s` at the latest.

        May be called twice.
        """
        with self._lock:
            first, self._closed = not self._closed, True
            if first:
                self._inbox.put(None)
        await asyncio.to_thread(self._thread.join, self._policy.timeout_s)
        if self._thread.is_alive():
            log.warning("the policy is still busy after %g s; it ends by itself", self._policy.timeout_s)
        else:
            self._encoders.shutdown(wait=False)

    # on the encoding threads

    def _prepare(self, request: _Request) -> None:
        """Encode a request and put it into the inbox, also where it fails: the worker counts all of them."""
        try:
            if not request.answer.cancelled():
                request.prompt = self._prompt(request)
        except FlywheelError as error:
            _fail(request, error)
        except Exception as error:  # from the tokeniser, the chat template or the image library
            _fail(request, PolicyError(f"cannot encode: {error}", where=_WHERE))
        finally:
            self._inbox.put(request)

    def _prompt(self, request: _Request) -> EncodedPrompt:
        images = [part for message in request.context for part in message.parts if isinstance(part, Image)]
        keys = [hashlib.blake2b(image.png, digest_size=16).digest() for image in images]
        screens = [self._cut(request.encoder, *one) for one in zip(keys, images, strict=True)]
        name = (request.context, request.encoder)
        with self._lock:
            prompt = self._prompts.get(name)
        if prompt is None:
            encoded = request.encoder.encode_cut(request.context, screens)
            prompt = make_prompt(self._loaded.model, encoded, request.encoder.end_id, keys)
            kept = prompt.showing([_NO_PIXELS] * len(screens))  # the pixels are kept once for all prompts
            with self._lock:
                self._prompts.put(name, kept, kept.nbytes)
        else:
            prompt = prompt.showing([screen.pixels for screen in screens])
        if len(prompt) + request.sampling.max_new_tokens > self._loaded.limit:
            raise PolicyError(
                f"a prompt of {len(prompt)} tokens and {request.sampling.max_new_tokens} new ones do not fit into "
                f"the model's {self._loaded.limit}",
                where=_WHERE,
                fix="lower policy.history_n_images or policy.max_context_tokens",
            )
        return prompt

    def _cut(self, encoder: Encoder, key: bytes, image: Image) -> CutScreen:
        """Cut a screen, once for all prompts that show it. key: digest of its content."""
        name = (key, encoder)
        with self._lock:
            screen = self._screens.get(name)
        if screen is None:
            screen = encoder.cut(image.png)
            with self._lock:
                self._screens.put(name, screen, screen.pixels.nbytes)
        return screen

    # on the worker thread

    def _start(self, folder: Path | str, opened: Future[None]) -> None:
        """Load the model, then work until the policy is closed.

        The worker thread loads too, so that only one thread computes: OpenMP keeps a team of threads for each one that
        does, and with more threads than cores every small operation takes longer (by half, measured).
        """
        self._threads = torch.get_num_threads()
        try:
            self._loaded = LoadedCheckpoint.open(resolve_checkpoint(folder), self._policy)
            self._engine = self._loaded.engine(self._policy, self._threads)
            if is_small_model(self._loaded.model):
                use_one_core_in_thread()
        except BaseException as error:
            opened.set_exception(error)
        else:
            opened.set_result(None)
            self._work()

    def _work(self) -> None:
        ended = False
        while True:
            idle = not (self._engine.rows or self._waiting or self._swaps)
            if idle and ended and not self._encoding:
                return
            ended |= self._receive(wait=idle)
            try:
                self._turn()
            except Exception as error:  # a fault of this worker: the running requests fail, the worker continues
                log.exception("the worker stumbled")
                self._deliver(self._engine.fail(error))

    def _receive(self, *, wait: bool) -> bool:
        """Take all messages from the inbox; return whether the message to end was among them.

        An idle worker (`wait`) first waits for a message, then up to GATHER_S for requests that are still being
        encoded: a pass over one request takes a large part of the time of a pass over all of them.
        """
        ended = wait and self._take(self._inbox.get())
        late = time.monotonic() + (GATHER_S if wait else 0)
        while True:
            left = late - time.monotonic()
            more = self._encoding > 0 and len(self._waiting) < self._policy.max_num_seqs and not self._swaps
            try:
                message = self._inbox.get(timeout=left) if more and left > 0 else self._inbox.get_nowait()
            except queue.Empty:
                return ended
            ended |= self._take(message)

    def _take(self, message: _Request | _Swap | None) -> bool:
        """Queue a message; return whether it is the message to end (None)."""
        if isinstance(message, _Swap):
            self._swaps.append(message)
        elif message is not None:
            with self._lock:
                self._encoding -= 1
            if not message.answer.done():
                self._waiting.append(message)
        return message is None

    def _turn(self) -> None:
        """Drop cancelled requests, swap the weights or admit waiting requests, then sample a token for each row."""
        engine = self._engine
        engine.drop(lambda row: row.owner.answer.cancelled())
        self._waiting = deque(request for request in self._waiting if not request.answer.cancelled())
        if self._swaps and not engine.rows:
            self._swap(self._swaps.popleft())
        elif not self._swaps:
            self._admit()
        if self._engine.rows:
            self._deliver(self._engine.step())

    def _admit(self) -> None:
        """Admit waiting requests while the batch has room. Several must have at most PREFILL_TOKENS prompt tokens
        together, so that the running requests do not wait long."""
        newcomers: list[BatchRow] = []
        tokens = 0
        while self._waiting and len(self._engine.rows) + len(newcomers) < self._policy.max_num_seqs:
            request = self._waiting[0]
            if request.encoder is not self.encoder:  # the swap of weights changed the encoder: encode again
                request.encoder = self.encoder
                with self._lock:
                    self._encoding += 1
                self._encoders.submit(self._prepare, request)
            else:
                tokens += len(request.prompt)
                if newcomers and tokens > PREFILL_TOKENS:
                    break
                stopped = self._stop_check(request.sampling.stop) if request.sampling.stop else None
                try:
                    held = self._constraint(request.sampling)
                    newcomers.append(BatchRow(request.prompt, request.sampling, request, held, stopped))
                except BadInput as error:
                    _fail(request, error)
            self._waiting.popleft()
        if newcomers:
            self._deliver(self._engine.admit(newcomers))

    def _constraint(self, sampling: SamplingParams) -> AnswerConstraint | BegunConstraint | None:
        """Return the grammar that an answer is constrained to, with the text that it begins with; None: to none.
        Raises BadInput where it cannot begin so."""
        held = self._loaded.constraint if sampling.action else None
        if not sampling.begins:
            return held
        if held is None:
            what = "only an action that guided decoding constrains can begin with a given text"
            raise BadInput(
                what, where="policy.guided_decoding", fix="set it so that the model's actions are constrained"
            )
        return held.begun_with(self.encoder.encode_beginning(sampling.begins))

    def _stop_check(self, stops: tuple[str, ...]) -> Callable[[Sequence[int]], bool]:
        newest = max(len(stop.encode()) for stop in stops) + 4  # most tokens that a stop text just completed can take
        return lambda ids: _find_stop(self.encoder.decode(ids[-newest:]), stops) is not None

    def _deliver(self, rows: list[BatchRow]) -> None:
        for row in rows:
            request: _Request = row.owner
            try:
                if row.error is not None:
                    raise row.error
                completion = self._loaded.completion(row)
            except Exception as error:
                _fail(request, error)
            else:
                if request.answer.set_running_or_notify_cancel():
                    request.answer.set_result(completion)

    def _swap(self, swap: _Swap) -> None:
        if not swap.answer.set_running_or_notify_cancel():
            return
        try:
            before = self._loaded
            self._loaded = LoadedCheckpoint.open(swap.folder, self._policy, swap.version, before=before)
            # Caches of the old weights are dropped, but not features of screens where the tower is the same.
            vision = self._engine.vision if self._loaded.vision == before.vision else None
            self._engine = self._loaded.engine(self._policy, self._threads, vision)
            swap.answer.set_result(None)
        except FlywheelError as error:
            swap.answer.set_exception(error)
        except Exception as error:  # out of memory, for one
            swap.answer.set_exception(PolicyError(f"the weights cannot be swapped: {error}", where=swap.folder))


def _find_stop(text: str, stops: tuple[str, ...]) -> int | None:
    """Return the index at which the first of `stops` begins in `text`; None where it has none."""
    return min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)


def _fail(request: _Request, error: Exception) -> None:
    if request.answer.set_running_or_notify_cancel():
        request.answer.set_exception(error)
