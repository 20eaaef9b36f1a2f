"""What the explorer's server gives: to whom, of what, and what it says where it cannot."""

from __future__ import annotations

import io
import json

import httpx
import pytest
from explorer_store import SCRIPT, explorer, rollouts
from PIL import Image
from processes import PATIENCE_S
from synthetic_rows import image_row, task, trajectory

from flywheel.config.workspace import Workspace
from flywheel.store.partitions import write_partition
from flywheel.ui.explorer.auth import MAX_REQUEST_BYTES, LoginSessions
from flywheel.utils import credentials


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    ws = Workspace(tmp_path_factory.mktemp("explorer"))
    rollouts(ws, 1)
    rollouts(ws, 2)
    with explorer(ws) as (server, client):
        yield ws, server, client


# -- who may look ----------------------------------------------------------------------------------------------------


def test_an_address_lets_in_once_and_leaves_a_cookie_that_scripts_cannot_read(served):
    _, server, _ = served
    entrance = server.entrance()
    with (
        httpx.Client(base_url=server.url, timeout=PATIENCE_S) as one,
        httpx.Client(base_url=server.url, timeout=PATIENCE_S) as other,
    ):
        assert one.get("/api/columns").status_code == 401
        first = one.get(entrance)
        assert (first.status_code, first.headers["location"]) == (303, "/")
        assert {"HttpOnly", "SameSite=Strict"} <= set(first.headers["set-cookie"].split("; "))
        assert one.get("/api/columns").status_code == 200
        again = other.get(entrance)
        assert again.status_code == 401
        assert "was used already" in again.text
        assert other.get("/api/columns").status_code == 401


def test_the_secret_of_the_workspace_lets_in_and_nothing_else(served):
    ws, server, _ = served
    line = credentials.workspace_credentials(ws.state)
    for typed, status in ((line, 303), (line.partition(":")[2], 303), ("", 401), ("flywheel:", 401), (line[:-1], 401)):
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
            answer = client.post("/login", data={"secret": typed, "next": "/trajectories?q=a"})
            assert answer.status_code == status, typed
            assert client.get("/api/columns").status_code == (200 if status == 303 else 401)
            assert line.partition(":")[2] not in answer.text


def test_a_page_without_login_leads_to_it_and_back(served):
    _, server, _ = served
    asked = httpx.get(f"{server.url}/trajectories?where=world:is:shop")
    assert asked.headers["location"] == "/login?next=%2Ftrajectories%3Fwhere%3Dworld%3Ais%3Ashop"
    back = httpx.get(server.entrance() + "&next=%2Ftrajectories")
    assert back.headers["location"] == "/trajectories"
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example"):
        assert httpx.get(server.entrance() + f"&next={elsewhere}").headers["location"] == "/"


def test_other_hosts_origins_and_servers_of_this_machine_are_refused(served):
    _, server, client = served
    port = server.url.rpartition(":")[2]
    for headers, status in (
        ({"Host": f"evil.example:{port}"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}, 200),
    ):
        assert client.get("/api/columns", headers=headers).status_code == status, headers


def test_sessions_end():
    clock = [0.0]
    login = LoginSessions("flywheel:x", 4202, lambda: clock[0])
    cookies = login.set_cookie(login.exchange_key(login.key())).partition(";")[0]
    assert login.holds(f"a=b; {cookies}")
    assert not login.holds(cookies.replace("4202", "4203"))
    clock[0] = 13 * 3600
    assert not login.holds(cookies)


def test_each_answer_says_what_a_browser_may_do_with_it(served):
    _, server, client = served
    for path in ("/trajectories", "/api/columns", "/api/nothing", "/login", "/static/app.css"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    nonces = {client.get("/trajectories").headers["content-security-policy"] for _ in range(2)}
    assert len(nonces) == 2
    assert "set-cookie" not in httpx.get(f"{server.url}/login").headers


def test_a_long_request_is_refused_whatever_it_says_of_its_length(served):
    client = served[2]
    told = client.post("/login", content=b"x" * (MAX_REQUEST_BYTES + 1))
    assert (told.status_code, told.json()["error"]) == (413, "a request may have 256 KiB, this one is longer")
    assert client.post("/login", content=(b"x" * 65536 for _ in range(16))).status_code == 413
    assert client.get("/api/columns").status_code == 200


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/../params.yaml"]
)
def test_no_address_is_a_path_on_the_disk(served, path):
    assert served[2].get(path).status_code == 404


# -- the list --------------------------------------------------------------------------------------------------------


def names(client: httpx.Client, query: str) -> list[str]:
    answer = client.get(f"/api/trajectories?{query}").json()
    assert answer["total"] == len(answer["rows"])
    return [row["trajectory_id"] for row in answer["rows"]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("where=iteration:is:1&where=world:is:settings", ["t1r2", "t1r3"]),
        ("where=success:is:true&where=iteration:is:2", ["t2r1", "t2r3", "t2r5"]),
        ("where=trajectory_id:is:t1r0&where=trajectory_id:is:t2r5", ["t2r5", "t1r0"]),
        (
            "where=reward:least:1&where=reward:most:1&where=sample:not:0&where=iteration:most:1",
            ["t1r1", "t1r3", "t1r5"],
        ),
        (
            "where=destination:is:sft&where=template:is:one&where=iteration:is:1&sort=-trajectory_id",
            ["t1r5", "t1r3", "t1r1"],
        ),
        ("where=error:filled", []),
        ("where=error:empty&where=trajectory_id:has:R4", ["t2r4", "t1r4"]),
        ("where=started_at:least:2030-01-01", []),
        ("q=MUG 3&in=instructions", ["t2r3", "t1r3"]),
        ("q=mug 3&in=instructions&where=iteration:is:2", ["t2r3"]),
        ("q=100%25", []),
        ("q=onerror%3D'window&in=instructions", ["t2r5", "t1r5"]),
    ],
)
def test_filters_searches_and_orders(served, query, found):
    assert names(served[2], query) == found


def test_thoughts_are_searched(served):
    assert len(names(served[2], "q=look for mug 3&in=thoughts")) == 12
    assert names(served[2], "q=look for mug 4") == []


def test_pages_of_the_list_are_its_rows_each_once(served):
    client = served[2]
    pages = [client.get(f"/api/trajectories?sort=steps&offset={n}&limit=5").json() for n in (0, 5, 10, 15)]
    assert {page["total"] for page in pages} == {12}
    assert [len(page["rows"]) for page in pages] == [5, 5, 2, 0]
    assert len({row["trajectory_id"] for page in pages for row in page["rows"]}) == 12
    assert pages[0]["rows"][0]["screen"] == image_row(0)["sha256"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("where=wrld:is:shop", "no column wrld (trajectories); did you mean world?"),
        ('where=world" OR 1=1 --:is:x', 'no column world" OR 1=1 --'),
        ("where=world:like:x", "no comparison like"),
        ("where=steps:least:many", "not a number: many"),
        ("where=success:is:perhaps", "neither true nor false: perhaps"),
        ("where=started_at:least:yesterday", "the query cannot be answered"),
        ("sort=-nothing", "no column nothing"),
        ("q=a&in=tables", "nothing to search named tables"),
        ("limit=1000000", "limit: Input should be less than or equal to 500"),
        ("offset=-1", "offset: Input should be greater than or equal to 0"),
        (f"q={'a' * 500}", "q: String should have at most 400 characters"),
    ],
)
def test_what_cannot_be_asked_is_one_line(served, query, said):
    answer = served[2].get(f"/api/trajectories?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(said)
    assert "\n" not in answer.json()["error"]


def test_columns_say_what_they_are_and_which_values_they_have(served):
    columns = {row["name"]: row for row in served[2].get("/api/columns").json()}
    assert columns["success"]["kind"] == "truth"
    assert columns["started_at"]["kind"] == "time"
    assert "scores say" in columns["success"]["meaning"]
    assert served[2].get("/api/values/world").json() == [{"value": "shop", "n": 8}, {"value": "settings", "n": 4}]
    assert served[2].get("/api/values/nothing").status_code == 400


# -- one of them -----------------------------------------------------------------------------------------------------


def test_a_trajectory_with_all_that_is_known_of_it(served):
    ws, _, client = served
    write_partition(
        ws,
        "duplicates",
        1,
        "route",
        [{"trajectory_id": "t1r1", "duplicate_of": "t1r5", "similarity": 0.9, "reason": "a repeat", "weight": 0.5}],
    )
    write_partition(
        ws, "lineage", 1, "sft", [{"child": "models/iteration=001/sft", "parent": "t1r1", "relation": "trained on"}]
    )
    write_partition(
        ws,
        "utterances",
        1,
        "rollout",
        [{"trajectory_id": "t1r1", "utterance": 0, "step": 2, "asr_text": "the mug", "low_confidence": False}],
    )
    found = client.get("/api/trajectories/t1r1").json()
    assert found["facts"]["destination"] == "sft"
    assert found["facts"]["trained_checkpoints"] == ["models/iteration=001/sft"]
    assert found["task"]["verifier"] == "shop"
    assert [one["trajectory_id"] for one in found["samples"]] == ["t1r0"]
    assert [(one["trajectory_id"], one["similarity"]) for one in found["twins"]] == [("t1r5", 0.9)]
    assert [one["trajectory_id"] for one in client.get("/api/trajectories/t1r5").json()["twins"]] == ["t1r1"]
    steps = found["steps"]
    assert [step["short"].split()[0] for step in steps] == ["click", "type", "drag", "scroll"]
    assert [one["asr_text"] for one in steps[2]["said"]] == ["the mug"]
    assert steps[0]["tokens"] == ["5", "6", "7"], "no checkpoint is here to read them"
    assert steps[3]["screen"] is None
    assert SCRIPT[:8] not in steps[1]["overlay"]


def test_one_that_is_not_here_is_told_as_such(served):
    for name in ("none", "t1r1'", "%2e%2e%2fparams"):
        answer = served[2].get(f"/api/trajectories/{name}")
        assert answer.status_code == 404, name
    assert "discarded, or rolled back" in served[2].get("/api/trajectories/none").json()["error"]


def test_screens_are_given_as_pictures_for_ever_and_small_in_lists(served):
    ws, _, client = served
    large = io.BytesIO()
    Image.new("RGB", (1280, 720), "#336699").save(large, "PNG")
    hostile = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"
    rows = [
        {"sha256": "a" * 64, "width": 1280, "height": 720, "format": "png", "bytes": large.getvalue()},
        {"sha256": "b" * 64, "width": 9, "height": 9, "format": "svg+xml", "bytes": hostile},
        {"sha256": "c" * 64, "width": 9, "height": 9, "format": "png", "bytes": hostile},
    ]
    write_partition(ws, "images", 3, "rollout", rows)
    screen = client.get(f"/screens/3/{'a' * 64}")
    assert screen.content == large.getvalue()
    assert screen.headers["content-type"] == "image/png"
    assert "immutable" in screen.headers["cache-control"]
    small = client.get(f"/thumbnails/3/{'a' * 64}")
    assert Image.open(io.BytesIO(small.content)).size == (192, 108)
    assert client.get(f"/screens/3/{'b' * 64}").status_code == 400
    assert client.get(f"/screens/3/{'c' * 64}").headers["content-type"] == "image/png", "never what it says it is"
    assert client.get(f"/thumbnails/3/{'c' * 64}").json()["error"].startswith("the screen is no picture")
    for name, status in (("d" * 64, 404), ("..%2f..%2fauth", 404), ("x", 400)):
        assert client.get(f"/screens/3/{name}").status_code == status


# -- a store that grows, is empty, or is damaged -----------------------------------------------------------------------


def test_what_a_run_writes_is_told_and_seen(ws):
    with explorer(ws) as (_, client):
        assert client.get("/api/trajectories").json() == {"total": 0, "rows": []}
        with client.stream("GET", "/api/changes") as stream:
            names = (line for line in stream.iter_lines() if line.startswith("data: "))
            before = next(names)
            rollouts(ws, 1)
            assert next(names) != before
        assert client.get("/api/trajectories").json()["total"] == 6


def test_a_damaged_table_is_named_and_the_others_are_shown(ws):
    rollouts(ws, 1)
    part = next(ws.partition("tasks", 1, "synthesize").glob("part-*.parquet"))
    part.write_bytes(part.read_bytes()[:-200])
    with explorer(ws) as (_, client):
        told = client.get("/api/trajectories")
        assert told.status_code == 500
        assert part.name in told.json()["error"]
        assert client.get(f"/screens/1/{image_row(0)['sha256']}").status_code == 200
        rollouts(ws, 1)
        assert client.get("/api/trajectories").json()["total"] == 6


def test_a_partition_that_is_half_written_is_not_seen(ws):
    rollouts(ws, 1)
    folder = ws.partition("trajectories", 2, "rollout")
    folder.mkdir(parents=True)
    (folder / "part-00000-01234567.parquet").write_bytes(b"PAR1")
    with explorer(ws) as (_, client):
        assert client.get("/api/trajectories").json()["total"] == 6


def test_what_is_no_number_in_a_row_is_null(ws):
    rollouts(ws, 1)
    write_partition(
        ws,
        "routes",
        1,
        "route",
        [{"trajectory_id": "t1r0", "destination": "ct", "score": float("nan"), "success": None}],
    )
    with explorer(ws) as (_, client):
        rows = json.loads(client.get("/api/trajectories?where=trajectory_id:is:t1r0").text)["rows"]
        assert rows[0]["score"] is None


# -- a family ----------------------------------------------------------------------------------------------------------


def test_what_began_within_a_trajectory_is_told_from_each_of_the_family(ws):
    """A failure that was corrected from its step 2, and two episodes of RL that began within the correction."""
    rollouts(ws, 1)
    asked = task("k0", "sites", "shop")
    corrected = {"source": "correction", "author": "solver", "parent_id": "t1r0"}
    made = [trajectory("c0", asked, start_step=2, **corrected), trajectory("c1", asked, start_step=1, **corrected)]
    write_partition(ws, "trajectories", 1, "correct", made)
    rl = [trajectory(f"g{n}", asked, parent_id="c0", start_step=4 - n) for n in range(2)]
    lost = trajectory("l0", asked, parent_id="gone", start_step=3)
    write_partition(ws, "trajectories", 2, "rl-sites", [*rl, lost])
    with explorer(ws) as (_, client):

        def family(name: str) -> list[tuple]:
            rows = client.get(f"/api/trajectories/{name}").json()["family"]
            return [(row["trajectory_id"], row["parent_id"], row["start_step"], row["iteration"]) for row in rows]

        whole = [
            ("t1r0", None, None, 1),
            ("c1", "t1r0", 1, 1),
            ("c0", "t1r0", 2, 1),
            ("g1", "c0", 3, 2),
            ("g0", "c0", 4, 2),
        ]
        assert [family(name) for name in ("t1r0", "c0", "c1", "g0", "g1")] == [whole] * 5
        assert family("t1r1") == [], "a sample of the same task is no relative"
        assert family("l0") == [("gone", None, None, None), ("l0", "gone", 3, 2)]
        listed = client.get("/api/trajectories?where=parent_id:is:c0&sort=start_step").json()["rows"]
        assert [row["trajectory_id"] for row in listed] == ["g1", "g0"]
