"""The watch page's server answers its own pages alone."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from flywheel.envs.remote.watch import require_own_origin


@pytest.mark.parametrize("origin", [None, "null", "http://other:1", "http://["])
def test_a_request_of_another_origin_is_forbidden(origin):
    headers = {"Host": "here:1"} | ({"Origin": origin} if origin is not None else {})
    with pytest.raises(web.HTTPForbidden):
        require_own_origin(make_mocked_request("GET", "/", headers=headers))


def test_a_request_of_its_own_page_passes():
    require_own_origin(make_mocked_request("GET", "/", headers={"Host": "here:1", "Origin": "http://here:1"}))
