"""`flywheel model serve`: what it answers, what it refuses and how, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from click.testing import CliRunner
from lamp_env import small_model
from policy_servers import BODY, COMMAND, context, screen, serving
from processes import PATIENCE_S

from flywheel.cli import main
from flywheel.policy.chat_api import format_chat_request, png_data_url
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import SamplingParams
from flywheel.policy.server import app, process


@pytest.fixture(scope="module")
def folder(tmp_path_factory, project):
    return small_model(tmp_path_factory.mktemp("models") / "small", project)


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder) as server:
        yield server


@pytest.fixture
def ask(server):
    """POST a completion, the fields given laid over a plain one; (status, body)."""
    with httpx.Client(timeout=PATIENCE_S, headers=server.headers) as client:

        def ask(**fields):
            plain = BODY | {"max_tokens": 4, "seed": 1}
            content = json.dumps(plain | fields).encode()  # httpx by itself refuses half a surrogate pair
            headers = {"Content-Type": "application/json"}
            answer = client.post(f"{server.url}/chat/completions", content=content, headers=headers)
            return answer.status_code, answer.json()

        yield ask


def picture(url):
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


# -- answers ----------------------------------------------------------------------------------------------------------
def test_the_list_of_models(server, folder):
    (row,) = httpx.get(f"{server.url}/models", headers=server.headers).json()["data"]
    assert row["id"] == server.model == "small"
    assert (row["owned_by"], row["weight_version"]) == ("flywheel", checkpoint_digest(folder))
    assert server.weight_version == checkpoint_digest(folder)
    assert httpx.get(server.url.replace("/v1", "/health")).json() == {"status": "ok", "under_way": 0}


def test_an_answer_is_openais_with_token_ids(ask, folder):
    encoder = Encoder.from_folder(folder)
    messages = [
        {"role": "system", "content": "You act."},
        {"role": "user", "content": [{"type": "text", "text": "Go."}, *picture(png_data_url(screen(1)))[0]["content"]]},
    ]
    status, body = ask(messages=messages, logprobs=True, return_token_ids=True, max_completion_tokens=5, user="u")
    (choice,) = body["choices"]
    assert (status, body["object"], body["model"]) == (200, "chat.completion", "small")
    assert choice["message"] == {"role": "assistant", "content": encoder.decode(choice["token_ids"])}
    assert choice["finish_reason"] == ("stop" if choice["token_ids"][-1] == encoder.end_id else "length")
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [encoder.tokenizer.decode([i]) for i in choice["token_ids"]]
    assert all(bytes(entry["bytes"]).decode() == entry["token"] and entry["logprob"] <= 0 for entry in entries)
    assert body["prompt_token_ids"].count(encoder.image_id) == 4  # 64 x 64 pixels in patches of 32
    assert body["usage"] == {
        "prompt_tokens": len(body["prompt_token_ids"]),
        "completion_tokens": len(entries),
        "total_tokens": len(body["prompt_token_ids"]) + len(entries),
    }
    assert body["system_fingerprint"] == choice["weight_version"] == checkpoint_digest(folder)


def test_what_is_not_asked_for_is_not_sent(ask):
    body = ask()[1]
    assert "prompt_token_ids" not in body
    assert body["choices"][0]["logprobs"] is None
    assert "token_ids" not in body["choices"][0]


def test_samples_of_one_prompt_take_the_seeds_after_the_first(ask):
    def texts(**fields):
        return [choice["message"]["content"] for choice in ask(temperature=1.0, max_tokens=6, **fields)[1]["choices"]]

    together = texts(n=3, seed=7)
    assert together == [texts(seed=seed)[0] for seed in (7, 8, 9)]
    assert len(set(together)) == 3
    assert len({texts(seed=None)[0] for _ in range(4)}) > 1


def test_a_stream_holds_the_same_answer(server, ask):
    fields = {"n": 2, "logprobs": True, "return_token_ids": True}
    whole = ask(**fields)[1]
    body = BODY | {"max_tokens": 4, "seed": 1} | fields
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream(
        "POST", f"{server.url}/chat/completions", json=body, timeout=PATIENCE_S, headers=server.headers
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    *chunks, usage = [json.loads(line) for line in lines[:-1]]
    assert lines[-1] == "[DONE]"
    assert usage["usage"] == whole["usage"]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    for chunk, choice in zip(chunks, whole["choices"], strict=True):
        (part,) = chunk["choices"]
        assert part.pop("delta") == choice.pop("message")
        assert part == choice


# -- refusals ---------------------------------------------------------------------------------------------------------
PNG = png_data_url(screen(0))
BAD = {
    "messages": ({"messages": []}, "messages"),
    "no role": ({"messages": [{"content": "x"}]}, "messages.0.role"),
    "a role of tools": ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
    "half a character": ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content.0.text"),
    "an unknown part": ({"messages": [{"role": "user", "content": [{"type": "video_url"}]}]}, "messages.0.content.0"),
    "an address": ({"messages": picture("https://example.org/x.png")}, "messages.0.content.0.image_url.url"),
    "a file": ({"messages": picture("file:///etc/passwd")}, "messages.0.content.0.image_url.url"),
    "a number for an address": ({"messages": picture(7)}, "messages.0.content.0.image_url.url"),
    "not base64": ({"messages": picture("data:image/png;base64,%%%")}, "messages.0.content.0.image_url.url"),
    "not in base64": ({"messages": picture("data:text/plain,hello")}, "messages.0.content.0.image_url.url"),
    "not a picture": ({"messages": picture(png_data_url(b"nothing"))}, "policy context"),
    "cut off": ({"messages": picture(png_data_url(screen(0)[:500]))}, "policy context"),
    "temperature": ({"temperature": -1}, "temperature"),
    "no temperature": ({"temperature": "hot"}, "temperature"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens"),
    "n": ({"n": 1000}, "n"),
    "seed": ({"seed": 2**70}, "seed"),
    "stop": ({"stop": ["a", ""]}, "stop.1"),
    "top_p": ({"top_p": 0}, "top_p"),
    "top_k": ({"top_k": -2}, "top_k"),
    "a penalty": ({"frequency_penalty": 2.1}, "frequency_penalty"),
    "no penalty": ({"repetition_penalty": 0}, "repetition_penalty"),
    "top_logprobs": ({"top_logprobs": 3, "logprobs": True}, "top_logprobs"),
    "tools": ({"tools": [{"type": "function"}]}, "tools"),
    "a typing error": ({"temprature": 1}, "temprature"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(ask, name):
    fields, param = BAD[name]
    status, body = ask(**fields)
    error = body["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert "\n" not in error["message"]
    assert ask()[0] == 200


def test_filters_and_penalties_change_what_is_sampled(ask):
    def said(**fields) -> list[int]:
        _, body = ask(max_tokens=12, return_token_ids=True, ignore_eos=True, seed=5, **fields)
        return body["choices"][0]["token_ids"]

    likeliest = said(temperature=0)
    assert said(temperature=1.5) != likeliest
    for only in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert said(temperature=1.5, **only) == likeliest
    assert len(set(said(temperature=0, presence_penalty=2, frequency_penalty=2, repetition_penalty=1e6))) == 12


def test_an_answer_ends_before_a_stop(ask):
    fields = {"max_tokens": 40, "ignore_eos": True, "seed": 3, "temperature": 1.2, "return_token_ids": True}
    (whole,) = ask(**fields)[1]["choices"]
    text = whole["message"]["content"]
    stop = text[len(text) // 2 :][:3]
    (cut,) = ask(**fields, stop=["not said \x01", stop])[1]["choices"]
    assert cut["message"]["content"] == text[: text.index(stop)]
    assert (cut["finish_reason"], whole["finish_reason"]) == ("stop", "length")
    assert cut["token_ids"] == whole["token_ids"][: len(cut["token_ids"])] != whole["token_ids"]
    assert ask(**fields, stop=stop)[1]["choices"] == [cut]


def test_neutral_values_and_nulls_are_no_fault(ask):
    fields = {"top_p": 1, "stop": [], "tools": None, "presence_penalty": 0.0, "response_format": {"type": "text"}}
    assert ask(**fields, metadata={"a": "b"}, max_tokens=None, max_completion_tokens=3)[0] == 200


def test_a_prompt_that_does_not_fit(ask):
    status, body = ask(messages=[{"role": "user", "content": "word " * 5000}])
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert "do not fit into the model's 4096" in body["error"]["message"]


def test_another_model(ask):
    status, body = ask(model="gpt-4")
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert "`small`" in body["error"]["message"]


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b" " * (app.MAX_BODY + 1), "application/json", 413),
    ],
)
def test_a_body_that_is_no_request(server, content, kind, status):
    headers = {"Content-Type": kind, **server.headers}
    answer = httpx.post(f"{server.url}/chat/completions", content=content, headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_no_such_route(server):
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/load_lora_adapter", 404),
    ):
        answer = httpx.request(method, server.url.removesuffix("/v1") + path)
        assert (answer.status_code, answer.json()["error"]["message"]) == (status, f"no route {method} {path}")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "no folder"),
        ({"path": 3}, "no folder"),
        ({"path": "/nowhere"}, "/nowhere"),
        ({"path": "a\0b"}, "no folder"),
        ({"path": "{folder}", "version": "0123"}, "not 0123"),
        ([], "no folder"),
    ],
)
def test_weights_that_cannot_be_taken(server, folder, ask, body, words):
    if isinstance(body, dict) and body.get("path") == "{folder}":
        body = body | {"path": str(folder)}
    answer = httpx.post(f"{server.url}/weights", json=body, timeout=PATIENCE_S, headers=server.headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert words in answer.json()["error"]["message"]
    assert ask()[1]["choices"][0]["weight_version"] == checkpoint_digest(folder)


# -- the process ------------------------------------------------------------------------------------------------------
@pytest.mark.exhaustive
def test_it_ends_once_what_is_under_way_is_answered(folder):
    with serving(folder, "--set", "policy.max_num_seqs=4") as server, ThreadPoolExecutor(4) as threads:
        body = format_chat_request(context(0), SamplingParams(max_new_tokens=600, ignore_end=True), "small")
        asked = [
            threads.submit(
                httpx.post, f"{server.url}/chat/completions", json=body, timeout=PATIENCE_S, headers=server.headers
            )
            for _ in range(4)
        ]
        health = server.url.replace("/v1", "/health")
        while httpx.get(health).json()["under_way"] < 4:
            pass
        server.process.terminate()
        answers = [answer.result() for answer in asked]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert all(len(answer.json()["choices"][0]["token_ids"]) == 600 for answer in answers)
        assert server.process.wait(PATIENCE_S) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(health)


def refused(*arguments):
    """`flywheel model serve`, which does not come to serve: (exit code, what it says)."""
    done = CliRunner().invoke(main, ["model", "serve", *map(str, arguments)])
    assert len(done.output.splitlines()) == 1
    return done.exit_code, done.output


def test_a_port_in_use(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, line = refused(folder, "--port", port)
    assert code == 2
    assert f"port {port} is in use (127.0.0.1); give another --port" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{tmp}", "--port", 0], "config.json"),
        (["{tmp}/nowhere", "--port", 0], "no such model folder"),
        (["{folder}", "--host", "no.such.host.invalid"], "not an address"),
        (["{folder}", "--host", "203.0.113.9", "--port", 0], "cannot serve at 203.0.113.9:0"),
        (["{folder}", "--set", "rollout.n_rollouts=3"], "not of the policy: rollout.n_rollouts"),
        (["{folder}", "--set", "policy.max_num_seqs=0"], "policy.max_num_seqs"),
        (["{folder}", "--key-variable", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
    ],
)
def test_what_cannot_be_served(folder, tmp_path, arguments, words):
    code, line = refused(*(str(word).format(tmp=tmp_path, folder=folder) for word in arguments))
    assert code == 2
    assert words in line


@pytest.mark.exhaustive
def test_a_key_is_made_for_each_server_and_its_user_alone_finds_it(folder, monkeypatch):
    """And it is nobody's any more when the server is gone, in whatever way."""
    monkeypatch.setenv("OPENAI_API_KEY", "of another server")
    with serving(folder) as server:
        port = httpx.URL(server.url).port
        path = process.server_key_path(port)
        assert path.stat().st_mode & 0o777 == 0o600
        assert (
            process.find_server_key(server.url) == process.find_server_key(f"http://localhost:{port}/v1") == server.key
        )
        assert process.find_server_key(f"http://example.org:{port}/v1") == ""
        ask = {"json": BODY, "timeout": 60}
        for headers, status in (
            ({}, 401),
            (server.headers, 200),
            (server.headers | {"Host": f"evil.example:{port}"}, 421),
            (server.headers | {"Origin": "http://evil.example"}, 403),
        ):
            assert httpx.post(f"{server.url}/chat/completions", headers=headers, **ask).status_code == status
        server.process.kill()
        server.process.wait(PATIENCE_S)
        assert path.exists()
        assert process.find_server_key(server.url) == ""
    path.unlink()


@pytest.mark.exhaustive
def test_ctrl_c_and_the_line_for_people(folder):
    process = subprocess.Popen(
        [*COMMAND, str(folder), "--port", "0", "--name", "mine"], stdout=subprocess.PIPE, text=True
    )
    line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    assert process.stdout.read() == ""
    process.stdout.close()
    assert line.startswith(f"serving mine (weights {checkpoint_digest(folder)}) at http://127.0.0.1:")
    assert line.endswith(".key; Ctrl-C ends it\n")
