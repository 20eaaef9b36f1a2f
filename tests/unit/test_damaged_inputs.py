"""The bench of damaged inputs, in small: what is damaged is taken in whole or refused in one line."""

from __future__ import annotations

import json

import damaged
import pytest

from flywheel.utils.json_text import iter_json_lines, parse_foreign_json


def test_a_few_of_each_kind_end_in_no_traceback_hang_or_loss(tmp_path):
    for case in damaged.cases(8, 3, 120.0, tmp_path, [name for name in damaged.KINDS if name != "page_try"]):
        told = json.loads(case.line())
        assert told["met"], told
        assert told["accepted"] + told["refused"] == 8


def test_the_bench_sees_what_it_looks_for(tmp_path):
    def lossy(folder, rng):
        damaged.lost(True, "a step")

    def noisy(folder, rng):
        raise KeyError("x")

    def told_in_two_lines(folder, rng):
        raise damaged.Refused("one\ntwo")

    def slow(folder, rng):
        while True:
            pass

    found = [damaged.outcome(read, "0", tmp_path / "in", 0.2)[0] for read in (lossy, noisy, told_in_two_lines, slow)]
    assert found == ["silent_losses", "tracebacks", "tracebacks", "hangs"]


@pytest.mark.parametrize("text", [b'{"a": 1, "a": 2}', b"NaN", b"1e999", b"\xff", b"[" * 99_999, b"{"])
def test_json_that_python_would_let_pass_is_refused(text):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        parse_foreign_json(text)
    assert "\n" not in str(error.value)


def test_lines_of_json_end_at_line_feeds_alone(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": "\xe2\x80\xa8\xc2\x85"}\r\n\n  \n2\n')
    assert [(number, parse_foreign_json(line)) for number, line in iter_json_lines(path)] == [
        (1, {"a": "\u2028\x85"}),
        (4, 2),
    ]
