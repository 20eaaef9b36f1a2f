"""A policy of several servers, which misbehave on purpose: who is left out, and who comes back."""

from __future__ import annotations

import asyncio
import json

import pytest
from lamp_env import small_model
from policy_servers import Misbehaving, breaks, context, half, hangs, says
from progress_lines import told

from flywheel import config
from flywheel.config import PolicySettings
from flywheel.config.workspace import Workspace
from flywheel.pipeline import iterations
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.protocol import SamplingParams
from flywheel.utils.errors import BadInput, PolicyBusy, PolicyError
from flywheel.utils.progress import replace_listener

# -- servers that misbehave -------------------------------------------------------------------------------------------
ASK = SamplingParams(max_new_tokens=8, seed=5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, project):
    root = tmp_path_factory.mktemp("models")
    return [small_model(root / f"m{seed}", project, seed) for seed in range(2)]


class Playing(Misbehaving):
    """Takes weights too. published: their versions, in order. sessions: the seed of each request that was answered."""

    def __post_init__(self):
        super().__post_init__()
        self.published, self.seeds = [], []
        self.there()

    def there(self):
        self.routes["GET /v1/models"] = self._models
        self.routes["POST /v1/weights"] = self._take

    def away(self):
        """Nothing of it answers; what is asked for is not counted."""
        self.next = Away()
        self.routes.update({"GET /v1/models": breaks, "POST /v1/weights": breaks})

    def good(self, raw):
        self.seeds.append(json.loads(raw)["seed"])
        return super().good(raw)

    async def _models(self, raw, write):
        row = {"id": "tiny", "owned_by": "flywheel", "root": str(self.folder), "weight_version": self.version}
        await says(200, {"data": [row]})(raw, write)

    async def _take(self, raw, write):
        self.version = json.loads(raw)["version"]
        self.published.append(self.version)
        await says(200, {"weight_version": self.version})(raw, write)


class Away(list):
    def __bool__(self):
        return True

    def pop(self, *_):
        return breaks


@pytest.fixture
def pair(folders):
    with Playing(folders[0]).running() as one, Playing(folders[0]).running() as other:
        yield one, other


def several(*servers, **changes):
    chosen = {"backend": "openai", "endpoint": [server.url for server in servers], "retries": 0, "timeout_s": 20}
    return open_policy(servers[0].folder, PolicySettings(**chosen | changes))


def of(session, **more):
    return SamplingParams(max_new_tokens=8, session=str(session), seed=session, **more)


async def test_all_requests_of_a_session_go_to_one_server_and_each_has_as_many(pair):
    policy = several(*pair)
    for _ in range(5):
        await asyncio.gather(*(policy.complete(context(n % 4), of(n)) for n in range(6)))
    await policy.close()
    assert [len(server.seeds) for server in pair] == [15, 15]
    assert not set(pair[0].seeds) & set(pair[1].seeds)


FAULTS = {
    "dies at once": (breaks, "connection broke"),
    "dies half way": (half, "connection broke"),
    "server error": (says(500, b"Traceback"), "status 500"),
    "gateway": (says(502, b""), "status 502"),
    "closing": (says(503, b""), "status 503"),
    "too late there": (says(504, b""), "status 504"),
    "wrong key": (says(401, {"error": "Unauthorized"}), "401"),
    "not JSON": (says(200, b"<html>"), "not JSON"),
    "hangs": (hangs, "no answer in"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_one_server_fails_at_another_answers_and_the_first_comes_back(pair, name):
    fault, words = FAULTS[name]
    one, other = pair
    with told() as heard:
        policy = several(*pair, timeout_s=2.0 if fault is hangs else 20)
        one.next = [fault]
        done = [await policy.complete(context(0), of(1)), await policy.complete(context(0), of(1))]
        assert words in await heard.line(one.url, "is left out")
        await heard.line(one.url, "answers again")
        # Of two new sessions at once each has one; the one that moved stays where it is.
        await asyncio.gather(*(policy.complete(context(0), of(n)) for n in (1, 2, 3)))
        await policy.close()
    assert [completion.token_ids for completion in done] == [(45, 46)] * 2
    assert other.seeds.count(1) == 3
    assert 1 not in one.seeds
    assert set(one.seeds) & {2, 3}
    assert len(heard.lines) == 2


async def test_what_is_wrong_with_a_request_is_nobodys_fault(pair):
    with told() as heard:
        policy = several(*pair)
        pair[0].next = [says(400, {"error": {"message": "too long"}})]
        with pytest.raises(BadInput, match="too long"):
            await policy.complete(context(0), ASK)
        await policy.close()
    assert heard.lines == []
    assert [server.asked for server in pair] == [1, 0]


async def test_a_busy_server_is_not_left_out_and_all_of_them_busy_is_said(pair):
    busy = says(429, {"error": {"message": "queue full"}})
    with told() as heard:
        policy = several(*pair)
        pair[0].next = [busy]
        assert (await policy.complete(context(0), ASK)).token_ids == (45, 46)
        for server in pair:
            server.next = [busy]
        with pytest.raises(PolicyBusy, match=r"none of 2 servers.*queue full.*queue full"):
            await policy.complete(context(0), ASK)
        await policy.close()
    assert heard.lines == []


async def test_what_fails_everywhere_is_not_asked_for_ever(pair):
    policy = several(*pair)
    for server in pair:
        server.next = [says(500, b"it cannot be done")] * 9
    with pytest.raises(PolicyError, match=f"none of 2.*{pair[0].url}.*cannot be done.*{pair[1].url}.*cannot be done"):
        await policy.complete(context(0), ASK)
    assert [server.asked for server in pair] == [2, 2]
    await policy.close()


async def test_none_there_until_the_deadline_names_each_with_its_fault(pair):
    policy = several(*pair, timeout_s=1.5)
    for server in pair:
        server.away()
    with pytest.raises(PolicyError, match=r"none of 2 servers answers.*start them") as caught:
        await policy.complete(context(0), ASK)
    for server in pair:
        assert f"{server.url}: the connection broke" in str(caught.value)
    await policy.close()


async def test_a_request_waits_for_a_server_that_comes_back(pair):
    with told() as heard:
        policy = several(*pair)
        for server in pair:
            server.away()
        asking = asyncio.create_task(policy.complete(context(0), ASK))
        for server in pair:
            await heard.line(server.url, "left out")
        pair[1].next = []
        pair[1].there()
        assert (await asking).token_ids == (45, 46)
        await policy.close()
    assert pair[0].seeds == []


async def test_a_policy_is_opened_by_those_that_are_there(pair):
    pair[0].away()
    with told() as heard:
        policy = several(*pair)
        await policy.complete(context(0), ASK)
        pair[0].next = []
        pair[0].there()
        await heard.line(pair[0].url, "answers again")
        await policy.close()
    for server in pair:
        server.away()
    with pytest.raises(PolicyError, match=r"none of 2 servers answers"):
        several(*pair)


# -- weights ----------------------------------------------------------------------------------------------------------
async def test_each_server_gets_each_version(pair, folders):
    policy = several(*pair)
    for folder in (folders[1], folders[0]):
        await policy.load(folder)
        done = await asyncio.gather(*(policy.complete(context(0), of(n)) for n in range(4)))
        assert (
            {completion.weight_version for completion in done} == {checkpoint_digest(folder)} == {policy.weight_version}
        )
    await policy.close()
    assert [server.published for server in pair] == [[checkpoint_digest(folders[1]), checkpoint_digest(folders[0])]] * 2


async def test_a_server_that_was_away_gets_the_newest_weights_before_it_is_asked(pair, folders):
    one, other = pair
    with told() as heard:
        policy = several(*pair)
        one.away()
        await policy.complete(context(0), of(1))
        await heard.line(one.url, "left out")
        await policy.load(folders[1])
        assert (one.published, other.published) == ([], [checkpoint_digest(folders[1])])
        one.next = []
        one.there()
        assert checkpoint_digest(folders[1]) in await heard.line(one.url, "answers again")
        done = await asyncio.gather(*(policy.complete(context(0), of(n)) for n in range(2, 6)))
        await policy.close()
    assert one.published == [checkpoint_digest(folders[1])]
    assert one.seeds
    assert {completion.weight_version for completion in done} == {checkpoint_digest(folders[1])}


async def test_a_server_that_was_started_anew_unnoticed_does_not_answer_with_old_weights(pair, folders):
    """With those it was started on, which this run has published once, too."""
    one, other = pair
    with told() as heard:
        policy = several(*pair)
        await policy.load(folders[1])
        one.version = checkpoint_digest(folders[0])
        done = await asyncio.gather(*(policy.complete(context(0), of(n)) for n in range(4)))
        assert "started anew" in await heard.line(one.url, "left out")
        await heard.line(one.url, "answers again")
        await policy.close()
    assert {completion.weight_version for completion in done} == {checkpoint_digest(folders[1])}
    assert one.published == [checkpoint_digest(folders[1])] * 2
    alone = open_policy(folders[0], PolicySettings(backend="openai", endpoint=other.url, retries=0))
    await alone.load(folders[1])
    other.version = checkpoint_digest(folders[0])
    with pytest.raises(PolicyError, match="started anew, or someone else published"):
        await alone.complete(context(0), ASK)
    await alone.close()


async def test_a_server_that_hangs_does_not_keep_the_others_from_new_weights(pair, folders):
    with told() as heard:
        policy = several(*pair, timeout_s=2.0)
        pair[0].routes["GET /v1/models"] = hangs
        await policy.load(folders[1])
        await heard.line(pair[0].url, "left out")
        pair[0].there()
        await heard.line(pair[0].url, "answers again")
        await policy.close()
    assert [server.published for server in pair] == [[checkpoint_digest(folders[1])]] * 2


async def test_nobody_takes_the_weights(pair, folders):
    policy = several(*pair, timeout_s=1.5)
    for server in pair:
        server.away()
    with pytest.raises(PolicyError, match="none of 2 servers answers"):
        await policy.load(folders[1])
    await policy.close()


# -- what is looked at before -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("endpoint", "words"),
    [([], "must name a server"), (["http://x/v1", ""], "is empty"), (["http://x/v1", "http://x/v1/"], "twice")],
)
def test_a_list_that_cannot_be_meant(endpoint, words):
    with pytest.raises(BadInput, match=rf"policy\.endpoint.*{words}"):
        config.parse_settings({"policy": {"backend": "openai", "endpoint": endpoint}}, where="params.yaml")


@pytest.mark.exhaustive
def test_preflight_tells_of_a_server_that_is_away_and_refuses_one_that_cannot_be_used(pair, project):
    one, other = pair

    def look(**changes):
        chosen = {"backend": "openai", "endpoint": [server.url for server in pair], "retries": 0} | changes
        lines = []
        with replace_listener(lambda stage, line: lines.append(line)):
            iterations.run_preflight(Workspace(project), config.parse_settings({"policy": chosen}, where=""))
        return lines

    assert look() == []
    one.away()
    (line,) = look()
    assert one.url in line
    other.routes["GET /v1/models"] = says(200, {"data": [{"id": "else"}]})
    with pytest.raises(PolicyError, match=f"no model 'tiny'; it has: else.*{other.url}"):
        look(model="tiny")
    other.away()
    with pytest.raises(PolicyError, match=f"none of 2 servers.*{one.url}.*{other.url}"):
        look()
