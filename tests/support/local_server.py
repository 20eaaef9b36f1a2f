"""A local HTTP endpoint that stands for a language model's server, so that its clients run for real."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from flywheel.config import LanguageModelSettings

Answer = tuple[int, object]


class Server:
    """Answers each request with the next of `answers`, (status, body), or with what a function makes of its body."""

    def __init__(self, *answers: Answer | Callable[[dict], Answer]) -> None:
        self.answers, self.requests = list(answers), []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                asked = json.loads(self.rfile.read(length))
                outer.requests.append((self.path, asked, dict(self.headers)))
                status, body = outer.answers[0](asked) if callable(outer.answers[0]) else outer.answers.pop(0)
                if status == 0:  # hold the answer back until the test is over
                    outer.over.wait(10)
                    return
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def settings(self, **more: object) -> LanguageModelSettings:
        return LanguageModelSettings(endpoint=self.url, model="stub", **{"timeout_s": 10, **more})


def said(text: str | None) -> Answer:
    return 200, {"choices": [{"message": {"content": text}}]}
