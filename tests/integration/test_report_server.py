"""The report as it is served, the secret that it asks for, and ports that are taken."""

from __future__ import annotations

import os
import socket
from unittest import mock

import httpx
import pytest

from flows.ops.ui import serve_ui, start_report_server
from flywheel.utils import credentials
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_text
from tests.support.ports import find_free_ports


def test_the_report_is_given_to_whoever_has_the_secret(ws):
    """The reviewer, by a browser that asks him; neither a page, nor a name that was given this machine's address."""
    write_text(ws.report_page, "the report")
    with start_report_server(ws, 0) as server:
        url = f"http://127.0.0.1:{server.server_port}/{ws.report_page.name}"
        login = {"Authorization": credentials.basic_auth_header(credentials.workspace_credentials(ws.state))}
        assert httpx.get(url, headers=login).text == "the report"
        assert httpx.get(url).headers["www-authenticate"].startswith("Basic")
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Basic eDp5"}, 401),
            (login | {"Host": "evil.example"}, 421),
            (login | {"Host": f"evil.example:{server.server_port}"}, 421),
        ):
            assert httpx.get(url, headers=headers).status_code == status
            assert httpx.head(url, headers=headers).status_code == status


@pytest.mark.parametrize("which", [0, 1, 2], ids=["Prefect's", "the report's", "the explorer's"])
def test_ui_names_a_port_that_is_taken(ws, which):
    with socket.socket() as taken:
        first = find_free_ports(3)
        port = first + which
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with mock.patch.dict(os.environ), pytest.raises(BadInput, match=f"port {port} is in use"):
            serve_ui(ws, first, pytest.fail)


def test_the_secret_is_its_owner_s_alone_and_stays_the_same(ws):
    path, made = credentials.credentials_path(ws.state), credentials.workspace_credentials(ws.state)
    assert path.stat().st_mode & 0o777 == 0o600
    assert credentials.workspace_credentials(ws.state) == made
    path.chmod(0o644)  # others may have read it
    assert credentials.workspace_credentials(ws.state) not in ("", made)
    assert path.stat().st_mode & 0o777 == 0o600
