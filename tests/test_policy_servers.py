"""A policy of several servers: how sessions are shared out, and what becomes of a server that fails."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lamps import Lamps, score_lamp, settings, small_model, task
from served import Misbehaving, breaks, context, half, hangs, says, serving

from flywheel import preflight
from flywheel import settings as config
from flywheel.errors import BadInput, PolicyBusy, PolicyError
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import digest
from flywheel.policy.places import Places
from flywheel.policy.protocol import Sampling
from flywheel.progress import listening
from flywheel.rollout.pool import rollout
from flywheel.scoring import verifiers
from flywheel.settings import Policy
from flywheel.training.rl.run import train_rl
from flywheel.workspace import Workspace

SESSIONS = st.lists(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=60)
LOADS = st.dictionaries(st.integers(0, 4), st.integers(0, 9), min_size=1)


# -- which server -----------------------------------------------------------------------------------------------------
@given(servers=st.integers(1, 5), sessions=st.integers(1, 40), answered=st.booleans())
def test_sessions_lie_evenly(servers, sessions, answered):
    """All at once, or each answered before the next one comes."""
    places, under_way = Places(), dict.fromkeys(range(servers), 0)
    given_to = dict.fromkeys(range(servers), 0)
    for number in range(sessions):
        chosen = places.find(str(number), under_way)
        given_to[chosen] += 1
        under_way[chosen] += not answered
    assert max(given_to.values()) - min(given_to.values()) <= 1


@given(sessions=SESSIONS, loads=st.lists(LOADS, min_size=60, max_size=60))
def test_a_session_moves_only_from_a_server_that_may_not_be_asked(sessions, loads):
    places, was = Places(), {}
    for session, under_way in zip(sessions, loads, strict=False):
        chosen = places.find(session, under_way)
        assert chosen in under_way
        if was.get(session) in under_way:
            assert chosen == was[session]
        else:
            assert under_way[chosen] == min(under_way.values())
        was[session] = chosen


@given(sessions=st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=40), out=st.integers(0, 3))
def test_a_server_that_goes_moves_its_own_sessions_alone_and_none_when_it_comes_back(sessions, out):
    places, everywhere = Places(), dict.fromkeys(range(4), 0)
    before = {session: places.find(session, everywhere) for session in sorted(sessions)}
    left = {place: 0 for place in everywhere if place != out}
    without = {session: places.find(session, left) for session in sorted(sessions)}
    assert {one for one in sessions if without[one] != before[one]} == {one for one in sessions if before[one] == out}
    assert {session: places.find(session, everywhere) for session in sorted(sessions)} == without


@given(names=st.lists(st.sampled_from(["", "a", "b", "c", "d"]), max_size=30))
def test_what_is_remembered_is_bounded(names):
    places = Places(kept=2)
    for name in names:
        places.find(name, {0: 0, 1: 0})
    assert len(places._of) <= 2
    assert "" not in places._of


# -- servers that misbehave -------------------------------------------------------------------------------------------
ASK = Sampling(max_new_tokens=8, seed=5)


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
    return open_policy(servers[0].folder, Policy(**chosen | changes))


class Told:
    """Lines that the policy tells, from whichever thread; a line with certain words can be waited for."""

    def __init__(self):
        self.lines, self._loop, self._new = [], asyncio.get_running_loop(), asyncio.Event()

    def __call__(self, stage, line):
        self.lines.append(str(line))
        self._loop.call_soon_threadsafe(self._new.set)

    async def line(self, *words):
        async with asyncio.timeout(120):
            while not (found := [line for line in self.lines if all(word in line for word in words)]):
                await self._new.wait()
                self._new.clear()
        return found[0]


@contextmanager
def told():
    heard = Told()
    with listening(heard):
        yield heard


def of(session, **more):
    return Sampling(max_new_tokens=8, session=str(session), seed=session, **more)


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
        assert {completion.weight_version for completion in done} == {digest(folder)} == {policy.weight_version}
    await policy.close()
    assert [server.published for server in pair] == [[digest(folders[1]), digest(folders[0])]] * 2


async def test_a_server_that_was_away_gets_the_newest_weights_before_it_is_asked(pair, folders):
    one, other = pair
    with told() as heard:
        policy = several(*pair)
        one.away()
        await policy.complete(context(0), of(1))
        await heard.line(one.url, "left out")
        await policy.load(folders[1])
        assert (one.published, other.published) == ([], [digest(folders[1])])
        one.next = []
        one.there()
        assert digest(folders[1]) in await heard.line(one.url, "answers again")
        done = await asyncio.gather(*(policy.complete(context(0), of(n)) for n in range(2, 6)))
        await policy.close()
    assert one.published == [digest(folders[1])]
    assert one.seeds
    assert {completion.weight_version for completion in done} == {digest(folders[1])}


async def test_a_server_that_was_started_anew_unnoticed_does_not_answer_with_old_weights(pair, folders):
    """With those it was started on, which this run has published once, too."""
    one, other = pair
    with told() as heard:
        policy = several(*pair)
        await policy.load(folders[1])
        one.version = digest(folders[0])
        done = await asyncio.gather(*(policy.complete(context(0), of(n)) for n in range(4)))
        assert "started anew" in await heard.line(one.url, "left out")
        await heard.line(one.url, "answers again")
        await policy.close()
    assert {completion.weight_version for completion in done} == {digest(folders[1])}
    assert one.published == [digest(folders[1])] * 2
    alone = open_policy(folders[0], Policy(backend="openai", endpoint=other.url, retries=0))
    await alone.load(folders[1])
    other.version = digest(folders[0])
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
    assert [server.published for server in pair] == [[digest(folders[1])]] * 2


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
        config.parse({"policy": {"backend": "openai", "endpoint": endpoint}}, where="params.yaml")


def test_preflight_tells_of_a_server_that_is_away_and_refuses_one_that_cannot_be_used(pair, project):
    one, other = pair

    def look(**changes):
        chosen = {"backend": "openai", "endpoint": [server.url for server in pair], "retries": 0} | changes
        lines = []
        with listening(lambda stage, line: lines.append(line)):
            preflight.check(Workspace(project), config.parse({"policy": chosen}, where=""))
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


# -- real servers -----------------------------------------------------------------------------------------------------
def weights_of(server) -> str:
    models = httpx.get(f"{server.url}/models", headers=server.headers, timeout=30).json()
    return models["data"][0]["weight_version"]


async def test_a_server_killed_in_the_middle_of_a_rollout_loses_nothing_and_comes_back(folders):
    chosen, tasks = settings(policy={"max_new_tokens": 12, "timeout_s": 60}), [task(n) for n in range(4)]
    arguments = {"iteration": 1, "settings": chosen, "temperature": 1.0}
    own = open_policy(folders[0], chosen.policy)
    expected = await rollout(tasks, 2, own, Lamps(), **arguments)
    await own.close()
    with serving(folders[0]) as one, serving(folders[0]) as other, told() as heard:
        port = one.url.split(":")[2].split("/")[0]
        policy = several_of(folders[0], chosen, one, other)

        got = await rollout(tasks, 2, Killing(policy, one.process), Lamps(), **arguments)
        assert one.process.poll() is not None
        assert "connect" in await heard.line(one.url, "is left out")
        await policy.load(folders[1])
        with serving(folders[0], "--port", port) as again:  # another key, and the weights it was started on
            assert again.url == one.url
            assert digest(folders[1]) in await heard.line(one.url, "answers again")
            assert await asyncio.to_thread(weights_of, again) == digest(folders[1])
            assert other.end() == 0
            late = await rollout(tasks, 2, policy, Lamps(), **arguments)
            await policy.close()
    assert [episode.id for episode in got] == [episode.id for episode in expected]
    for episode, alike in zip(got, expected, strict=True):
        assert [step.token_ids for step in episode.steps] == [step.token_ids for step in alike.steps]
    assert {step.weight_version for episode in late for step in episode.steps} == {digest(folders[1])}
    assert {episode.trajectory.status for episode in late} <= {"completed", "truncated", "invalid"}


class Killing:
    """A policy that kills a server with its fifth answer of 24, while other requests are under way."""

    def __init__(self, policy, process):
        self._policy, self._process, self._left = policy, process, 5

    def __getattr__(self, name):
        return getattr(self._policy, name)

    async def complete(self, context, sampling):
        completion = await self._policy.complete(context, sampling)
        self._left -= 1
        if not self._left:
            self._process.kill()
        return completion


def several_of(folder, chosen, *servers):
    changes = {"backend": "openai", "endpoint": [server.url for server in servers]}
    return open_policy(folder, chosen.policy.model_copy(update=changes))


def test_rl_publishes_each_version_to_all_its_servers(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(verifiers, "score", score_lamp)
    after = []
    with serving(folders[0]) as one, serving(folders[0]) as other:
        chosen = settings(
            policy={"max_new_tokens": 9, "timeout_s": 60, "backend": "openai", "endpoint": [one.url, other.url]},
            rl={
                "steps": 3,
                "tasks_per_step": 2,
                "samples": 2,
                "minibatch": 8,
                "value_pretraining_steps": 0,
                "length_buffer": 2,
                "temperature": 1.0,
                "max_staleness": 0,
                "max_drift": 10.0,
                "max_mismatch": 1.0,
            },
        )
        curve = train_rl(
            folders[0],
            tmp_path / "out",
            "games",
            [task(number, max_steps=2) for number in range(4)],
            settings=chosen,
            iteration=1,
            state_folder=tmp_path / "state",
            open_environments=Lamps.open,
            on_metric=lambda metric: after.append((weights_of(one), weights_of(other))),
        ).curve
    assert [metric["step"] for metric in curve] == [1, 2, 3]
    assert all(left == right for left, right in after)
    versions = [left for left, _ in after]  # the weights of the last step answer nobody
    assert len({digest(folders[0]), *versions}) == 3
    assert versions[1] == versions[2]
