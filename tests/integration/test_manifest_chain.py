"""Manifests chain by hash: a change anywhere in the history is noticed."""

from __future__ import annotations

import pytest
import synthetic
from synthetic import routed

from flywheel.store import manifest
from flywheel.utils.errors import DataError


def test_the_manifest_chains_and_notices_a_change(tmp_path):
    ws, settings = synthetic.workspace(tmp_path / "ws")
    synthetic.incoming(ws, settings, 1, tasks=3, samples=3)
    routed(ws, settings, 1)
    synthetic.outgoing(ws, 1)
    synthetic.incoming(ws, settings, 2, tasks=3, samples=3)
    routed(ws, settings, 2)
    two = manifest.read_manifest(ws, 2)
    assert [shard.iteration for shard in two.shards("ct")] == [1, 2]
    assert {shard.iteration for shard in two.shards("steps")} == {1, 2}
    manifest.verify_manifest(ws, 2)
    only_newest = manifest.write_manifest(ws, 2, window=1)
    assert [shard.iteration for shard in only_newest.shards("sft")] == [2]
    assert [shard.iteration for shard in only_newest.shards("ct")] == [1, 2]
    path = ws.resolve(two.shards("ct")[0].path)
    kept = path.read_bytes()
    path.write_bytes(kept + b"x")
    with pytest.raises(DataError, match="differs from the manifest") as raised:
        manifest.verify_manifest(ws, 2)
    assert raised.value.where == two.shards("ct")[0].path
    path.write_bytes(kept)
    ws.manifest(1).write_text(ws.manifest(1).read_text().replace('"sessions": []', '"sessions": ["s1"]'))
    with pytest.raises(DataError, match=r"manifest changed after iteration 002") as raised:
        manifest.verify_manifest(ws, 2)
    assert raised.value.where == "iterations/001/manifest.json"
