"""Variables of the environment that libraries obey: this machine's own servers are asked past them, wrong ones told."""

from __future__ import annotations

import os
from unittest import mock

import httpx
import pytest
from night import by_day

from flywheel.utils.errors import BadInput
from flywheel.utils.local_ports import bypass_proxies_on_loopback, check_connection_variables

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True)
def environment():
    """None of this machine's own variables."""
    others = {name: text for name, text in os.environ.items() if not name.lower().endswith("_proxy")}
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        others.pop(name, None)
    with mock.patch.dict(os.environ, others, clear=True):
        yield


def proxied(address: str) -> bool:
    """Whether a client of httpx, which Prefect's is, asks a proxy for an address."""
    with httpx.Client() as client:
        return client._transport_for_url(httpx.URL(address)) is not client._transport


@pytest.mark.parametrize("name", by_day([*PROXIES, *map(str.lower, PROXIES)], 2))
@pytest.mark.parametrize("spared", by_day([None, "no_proxy", "NO_PROXY"], 2))
def test_loopback_is_asked_past_any_proxy(monkeypatch, name, spared):
    monkeypatch.setenv(name, "http://proxy.example:3128")
    if spared:
        monkeypatch.setenv(spared, "intranet.example")
    scheme = "https" if "https" in name.lower() else "http"
    assert proxied(f"{scheme}://127.0.0.1:4200/api")
    bypass_proxies_on_loopback()
    check_connection_variables()
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert not proxied(f"{scheme}://{host}:4200/api")
    assert proxied(f"{scheme}://elsewhere.example/")
    assert proxied(f"{scheme}://intranet.example/") == (spared is None)


def test_without_a_proxy_nothing_is_set():
    bypass_proxies_on_loopback()
    check_connection_variables()
    assert "NO_PROXY" not in os.environ


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:9", "socksio"),
        ("HTTP_PROXY", "ftp://proxy.example", "Unknown scheme"),
        ("https_proxy", "http://proxy.example:port", "port"),
        ("SSL_CERT_FILE", "/no/such/file", "No such file"),
    ],
)
def test_what_no_library_can_use_is_one_line(monkeypatch, name, value, part):
    monkeypatch.setenv(name, value)
    bypass_proxies_on_loopback()
    with pytest.raises(BadInput, match=f"{part}.*\\({name}\\); mend the one that is wrong, or unset it$"):
        check_connection_variables()
