"""One server of a policy: its model, its weights, its turns. All of it belongs to one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

from flywheel import settings as config
from flywheel.agent.context import Context
from flywheel.errors import PolicyBusy, PolicyError, PolicyTimeout
from flywheel.policy.checkpoint import digest
from flywheel.policy.encoding import Encoder
from flywheel.policy.endpoint import LOOK_S, PolicyEndpoint, Served
from flywheel.policy.protocol import Completion, Sampling
from flywheel.policy.publisher import CannotPublish, publisher_of
from flywheel.policy.turns import Turns
from flywheel.policy.wire_answer import Answer, read_answer
from flywheel.policy.wire_request import write_request


@dataclass(frozen=True)
class Weights:
    """A checkpoint that is to answer. version: its digest. encoder: the trainer's side, which encodes its prompts."""

    folder: Path
    version: str
    encoder: Encoder

    @classmethod
    def read(cls, folder: Path, max_image_side: int) -> Weights:
        """Raises ModelError for a folder without a tokeniser or weights."""
        return cls(folder, digest(folder), Encoder.from_folder(folder, max_image_side=max_image_side))


class Server:
    """policy: `endpoint` is this server's URL. under_way: requests that it was given and has not answered yet, those
    that wait for a turn included. Raises BadInput for an endpoint that is not an address.
    """

    def __init__(self, policy: config.Policy) -> None:
        self._policy = policy
        self._endpoint = PolicyEndpoint(policy)
        self.url = self._endpoint.url
        self._chat = f"{self.url}/chat/completions"
        self._turns = Turns(policy.batch)
        self._client = self._endpoint.client()
        self._given: list[str] = []  # versions that were published from here, in order
        self._has = 0  # which of them is known to answer
        self.under_way = 0

    async def open(self, weights: Weights, timeout_s: float) -> None:
        """Find the model, and publish the weights where it has others. For a server that was away too: it may have
        been started anew, with another key and its first weights.

        timeout_s: until it says what it serves. Raises PolicyError for a server that cannot be reached, has no such
        model or cannot take the weights.
        """
        self._client.headers.update(self._endpoint.headers())
        model = await self._endpoint.find(self._client, timeout_s)
        self._model, self._tells_version = model.name, bool(model.weight_version)
        self._publisher = publisher_of(model, self._endpoint)
        async with self._swapping():
            if (model.weight_version or await self._publisher.version()) != weights.version:
                await self._first_publish(weights, model)
            self._given.append(weights.version)
            self._answers_with(weights)

    async def look(self) -> None:
        """Whether it answers at all, which takes a hung server no longer than `LOOK_S` to deny. Raises as `open`."""
        await self._endpoint.find(self._client, min(self._policy.timeout_s, LOOK_S))

    async def load(self, weights: Weights) -> None:
        """Publish; requests under way end on the weights they began with."""
        self._given.append(weights.version)
        async with self._swapping():
            await self._publish(weights)
            self._answers_with(weights)

    async def complete(self, context: Context, sampling: Sampling, timeout_s: float) -> Completion:
        """One answer, of the weights that it was last given, or of newer ones that are published meanwhile.

        timeout_s: of waiting for a turn, every try and the pauses between them. Raises as `Policy.complete` does.
        """
        deadline = time.monotonic() + timeout_s
        self.under_way += 1
        try:
            await self._take_turn(timeout_s)
            try:
                least = self._has
                answer = await self._ask(context, sampling, max(deadline - time.monotonic(), 1e-3))
                await self._check_prompt(context, answer)
            finally:
                self._turns.give_back()
        finally:
            self.under_way -= 1
        completion = answer.completion
        if not completion.weight_version:
            return replace(completion, weight_version=self._given[least])
        if completion.weight_version not in self._given[least:]:
            raise PolicyError(
                f"the server answered with the weights {completion.weight_version}, not {self._given[least]}: it was "
                "started anew, or someone else published to it",
                where=self._chat,
                fix="give each run a server of its own",
            )
        return completion

    async def close(self) -> None:
        await self._client.aclose()

    def _swapping(self) -> contextlib.AbstractAsyncContextManager[None]:
        """A server that does not tell in each answer which weights gave it is asked nothing while it swaps."""
        return contextlib.nullcontext() if self._tells_version else self._turns.nobody()

    def _answers_with(self, weights: Weights) -> None:
        self._has, self._encoder, self._prompt_checked = len(self._given) - 1, weights.encoder, False

    async def _first_publish(self, weights: Weights, model: Served) -> None:
        try:
            await self._publish(weights)
        except CannotPublish:
            # Its weights are those that it was started with, so the folder it was started on will do.
            if not await asyncio.to_thread(_same_folder, model.root, weights.folder):
                raise

    async def _publish(self, weights: Weights) -> None:
        published = await self._publisher.publish(weights.folder)
        if published != weights.version:
            raise PolicyError(
                f"the folder holds the weights {published} by now, not {weights.version}", where=weights.folder
            )

    async def _take_turn(self, timeout_s: float) -> None:
        if not self._turns.free and self._turns.waiting >= self._policy.queue:
            raise PolicyBusy(
                f"{self._policy.batch} requests are under way and {self._turns.waiting} wait",
                where=self._chat,
                fix="ask less at once, or raise policy.batch or policy.queue",
            )
        try:
            async with asyncio.timeout(timeout_s):
                await self._turns.take()
        except TimeoutError:
            raise PolicyTimeout(
                f"no turn in {timeout_s:g} s", where=self._chat, fix="raise policy.timeout_s or policy.batch"
            ) from None

    async def _ask(self, context: Context, sampling: Sampling, timeout_s: float) -> Answer:
        body = write_request(context, sampling, self._model)
        answer = await self._endpoint.call(self._client, "POST", self._chat, body, timeout_s=timeout_s)
        return read_answer(answer, where=self._chat)

    async def _check_prompt(self, context: Context, answer: Answer) -> None:
        """The first answer of each checkpoint: what the server's model read must be what training will encode."""
        if self._prompt_checked:
            return
        ours = await asyncio.to_thread(self._encoder.prompt_ids, context)
        theirs = answer.prompt_token_ids
        same = answer.completion.prompt_tokens == len(ours) if theirs is None else list(theirs) == ours
        if not same:
            theirs = theirs or ()
            place = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
            raise PolicyError(
                f"the server's prompt has {answer.completion.prompt_tokens} tokens and the trainer's {len(ours)}; they "
                f"part at token {place}",
                where=self._chat,
                fix="serve the same checkpoint, with its own chat template and image settings",
            )
        self._prompt_checked = True


def _same_folder(one: str, other: Path) -> bool:
    return Path(one).resolve() == other.resolve()
