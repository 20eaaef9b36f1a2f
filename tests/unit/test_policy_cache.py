"""What an engine keeps: prompts by their equal beginnings, the newest used, keys and values by rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flywheel.policy.inference.cache import EncodedScreen, KVCache, LruCache, find_prefix_cuts

ids = st.lists(st.integers(0, 5), min_size=1, max_size=120)


@given(ids, ids, st.data())
def test_cuts_are_equal_as_far_as_prompts_are(one, other, data):
    """Against a plain comparison, with a screen somewhere in both: a cut's name is shared exactly by equal beginnings,
    and none lies inside a screen."""
    common = data.draw(st.integers(0, min(len(one), len(other))))
    other = one[:common] + other[common:]
    start, size = data.draw(st.integers(0, min(len(one), len(other)) - 1)), 3
    keys = [data.draw(st.sampled_from([b"a", b"b"])) for _ in range(2)]
    made = []
    for tokens, key in zip((one, other), keys, strict=True):
        row = np.array([*tokens[:start], *[9] * size, *tokens[start:]], dtype=np.int64)
        screen = EncodedScreen(key, start, start + size, (1, 2, 6), np.zeros((12, 4), np.float32))
        found = find_prefix_cuts(row, [screen], end_id=2)
        assert [tokens for tokens, _ in found] == sorted({tokens for tokens, _ in found})
        assert found[-1][0] == len(row)
        assert not any(start < tokens < start + size for tokens, _ in found)
        made.append((row, dict(found)))
    (left, names), (right, others) = made
    for tokens in names.keys() & others.keys():
        equal = np.array_equal(left[:tokens], right[:tokens]) and (tokens <= start or keys[0] == keys[1])
        assert (names[tokens] == others[tokens]) == equal


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), max_size=60), st.integers(0, 20))
def test_what_is_kept_never_takes_more_than_its_room(puts, limit):
    held: LruCache[int] = LruCache(limit)
    kept: dict[int, int] = {}
    for key, size in puts:
        if held.get(key) is None:
            gone = held.put(key, key, size)
            if size <= limit:
                kept[key] = size
            for old in gone:
                del kept[old]
        assert held.used == sum(kept.values()) <= limit
        assert set(held) == set(kept)


def test_the_least_recently_used_goes_first():
    held: LruCache[str] = LruCache(3)
    for key in "abc":
        held.put(key, key, 1)
    held.get("a")
    assert held.put("d", "d", 2) == ["b", "c"]
    assert [*held] == ["a", "d"]


def test_rows_keep_their_places_when_others_leave():
    """Exact numbers: five rows, of which two leave; buffers grow meanwhile."""
    held = KVCache(8, 4, 1)
    numbers = torch.arange(5.0)[:, None, None, None].expand(5, 2, 3, 4) + torch.arange(3.0)[:, None] / 10
    held.at([0] * 5, 3, 3, torch.device("cpu"))
    held.update(numbers, -numbers, 0)
    held.take(1, held, 4, 3)  # the last moves into the gap
    held.reserve(8, 100, 4)
    mask = held.at([3, 3, 3, 3], 1, 4, torch.device("cpu"))
    keys, values = held.update(torch.full((4, 2, 1, 4), 9.0), torch.full((4, 2, 1, 4), 8.0), 0)
    assert mask.shape == (4, 1, 1, 4)
    assert bool(mask.all())
    assert keys[:, 0, :, 0].tolist() == [
        pytest.approx([row, row + 0.1, row + 0.2, 9.0]) for row in (0.0, 4.0, 2.0, 3.0)
    ]
    assert torch.equal(values[:, :, :3], -keys[:, :, :3])
    assert torch.equal(held.read(1, 2)[0, 0], keys[1, :, :2])


def test_rows_of_different_lengths_see_only_themselves():
    held = KVCache(2, 8, 1)
    mask = held.at([0, 3], 2, 8, torch.device("cpu"))
    assert mask[:, 0].int().tolist() == [
        [[1, 0, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]],
        [[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]],
    ]
    new = torch.arange(4.0).reshape(2, 1, 2, 1)
    keys, _ = held.update(new, new, 0)
    assert keys[:, 0, :, 0].tolist() == [[0, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 2, 3, 0, 0, 0]]
