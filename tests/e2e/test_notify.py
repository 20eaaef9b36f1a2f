"""Somebody is told: a command gets it on its input, a notification block of Prefect's as its message."""

from __future__ import annotations

import email.policy
import http.server
import json
import socketserver
import threading
from unittest import mock

import pytest

from flows import notifications as module
from flows.notifications import notify
from flywheel.config import OperationsSettings
from flywheel.utils.progress import replace_listener

TEXT = 'the last word was "$(touch hacked)"; `touch hacked`'  # what an agent wrote may stand in it


def command(text: str) -> OperationsSettings:
    return OperationsSettings(notify_command=text)


@pytest.fixture
def said():
    lines: list[str] = []
    with replace_listener(lambda stage, line: lines.append(f"{stage}: {line}")):
        yield lines


def test_a_command_gets_it_as_json_and_as_variables(ws, said):
    notify(ws, command('cat > told.json; echo "$FLYWHEEL_EVENT|$FLYWHEEL_TEXT" > variables'), "failed", TEXT)
    assert json.loads((ws.root / "told.json").read_text()) == {
        "event": "failed",
        "text": TEXT,
        "workspace": str(ws.root),
    }
    assert (ws.root / "variables").read_text() == f"failed|{TEXT}\n"
    assert not (ws.root / "hacked").exists()
    assert said == []


def test_a_command_that_fails_is_told_and_stops_nothing(ws, said):
    notify(ws, command("echo no such address >&2; exit 3"), "done", "iteration 001 is done")
    assert said == ["notify: nobody could be told (operations.notify_command): exit code 3: no such address"]


def test_a_command_that_hangs_has_a_deadline(ws, said):
    with mock.patch.object(module, "_DEADLINE_S", 0.2):
        notify(ws, command("sleep 60"), "done", "iteration 001 is done")
    assert len(said) == 1
    assert "timed out" in said[0]


def test_a_web_hook_gets_it_as_json_and_its_address_is_never_told(ws, said, monkeypatch):
    with http.server.HTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.got = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("NIGHT", f"http://127.0.0.1:{server.server_port}/secret")
        notify(ws, OperationsSettings(notify_url="$NIGHT"), "done", TEXT)
        server.shutdown()
    assert server.got == [{"event": "done", "text": TEXT, "workspace": str(ws.root)}]
    assert said == []
    notify(ws, OperationsSettings(notify_url="$NIGHT"), "done", TEXT)  # it listens no more
    monkeypatch.delenv("NIGHT")
    notify(ws, OperationsSettings(notify_url="$NIGHT"), "done", TEXT)
    assert [line.split(": ", 2)[1:] for line in said] == [
        ["nobody could be told (operations.notify_url)", "ConnectError"],
        [
            "nobody could be told (operations.notify_url)",
            "its variable is not set, or holds neither http(s):// nor smtp(s)://",
        ],
    ]


class MailServer(socketserver.StreamRequestHandler):
    """What a client of SMTP wants to hear (RFC 5321)."""

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line[:4].upper()
            self.server.got.append(line)
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                while (line := self.rfile.readline()) != b".\r\n":
                    self.server.got.append(line)
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")


def test_mail_is_sent(ws, said):
    with socketserver.TCPServer(("127.0.0.1", 0), MailServer) as server:
        server.got = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"smtp://127.0.0.1:{server.server_address[1]}/ada@example.org"
        notify(ws, OperationsSettings(notify_url=url), "failed", "the last word: ü")
        server.shutdown()
    commands, _, rest = b"".join(server.got).partition(b"data\r\n")
    mail = email.message_from_bytes(rest.removesuffix(b"QUIT\r\n"), policy=email.policy.default)
    assert said == []
    assert b"rcpt TO:<ada@example.org>" in commands
    assert (mail["To"], mail["Subject"]) == ("ada@example.org", "flywheel: failed")
    assert mail.get_content().replace("\r", "") == f"the last word: ü\n\n{ws.root}\n"


@pytest.mark.parametrize("url", ["ftp://x/y", "smtp://x", "smtp://x/nobody", "hooks.slack.com/x", "http://"])
def test_an_address_that_cannot_be_told_is_refused(url):
    with pytest.raises(ValueError, match="is neither"):
        OperationsSettings(notify_url=url)


def test_nobody_is_told_where_nobody_is_named(ws, said):
    notify(ws, OperationsSettings(), "done", "iteration 001 is done")
    assert said == []
    assert list(ws.root.iterdir()) == []


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_) -> None: ...


def test_a_notification_block_of_prefects_is_told(ws, said, prefect):
    """The one for any web hook, against a server here."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    with http.server.HTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.got = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        block = CustomWebhookNotificationBlock(
            name="night",
            url=f"http://127.0.0.1:{server.server_port}/hook",
            json_data={"title": "{{subject}}", "text": "{{body}}"},
        )
        block.save("night", _sync=True)
        notify(ws, OperationsSettings(notify_block="custom-webhook/night"), "waiting", "iteration 002 waits")
        notify(ws, OperationsSettings(notify_block="custom-webhook/day"), "done", "iteration 002 is done")
        server.shutdown()
        assert server.got == [{"title": "flywheel: waiting", "text": f"iteration 002 waits\n{ws.root}"}]
    assert len(said) == 1
    assert "operations.notify_block: custom-webhook/day" in said[0]
