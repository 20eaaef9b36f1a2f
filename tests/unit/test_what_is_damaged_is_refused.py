"""What a hand wrote wrong, a server's address or a decision's file, is an error of the project's."""

from __future__ import annotations

import json

import pytest
import synthetic

from flywheel.config import LanguageModelSettings, PolicySettings
from flywheel.evaluation.promotion_review import read_review, review_path
from flywheel.policy.client.endpoint import PolicyEndpoint
from flywheel.policy.client.language_model import OpenAIChatModel
from flywheel.policy.server.process import find_server_key
from flywheel.utils.errors import BadInput, DataError


@pytest.mark.parametrize("address", ["localhost", "ftp://a", "http://", "http://a:x/v1", "http://xn--a/v1"])
def test_what_is_no_address_is_refused_by_its_setting(address):
    with pytest.raises(BadInput, match=r"not an address.*language_model\.endpoint"):
        OpenAIChatModel(LanguageModelSettings(endpoint=address))
    with pytest.raises(BadInput, match=r"not an address.*policy\.endpoint"):
        PolicyEndpoint(PolicySettings(backend="openai", endpoint=address))


def test_no_server_of_ours_runs_at_what_is_no_address():
    assert find_server_key("http://[") == ""


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"promote": "no"}, "neither true nor false"), ({"earlier": [{"promotion": True}]}, "unexpected keyword")],
)
def test_a_damaged_decision_is_no_decision(changed, why, tmp_path):
    ws, _ = synthetic.workspace(tmp_path / "ws")
    path = review_path(ws, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    decided = {"promote": False, "reviewer": "ada", "comment": "", "at": "2026-01-01T00:00:00+00:00"}
    path.write_text(json.dumps(decided))
    assert not read_review(ws, 1).promote
    path.write_text(json.dumps(decided | changed))
    with pytest.raises(DataError, match=why):
        read_review(ws, 1)
