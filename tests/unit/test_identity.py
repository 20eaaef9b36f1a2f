"""Which addresses pose the task that was set: no spelling of another seed does, and no other word does harm."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from flywheel.envs.browser.pages import manifest
from flywheel.envs.browser.pages.session import TaskIdentity

SEED = 3


def _identity():
    said = {
        "name": "x",
        "title": "x",
        "url": "http://127.0.0.1:1/?level=1",
        "instruction": "Win.",
        "reward": "1",
        "success": 1,
        "max_steps": 1,
        "reset": {"parameter": "seed"},
        "path": "/x.yaml",
    }
    return TaskIdentity(
        manifest.PageManifest.model_validate(said), f"http://127.0.0.1:1/?level=1&seed={SEED}", "page", SEED
    )


_SPELLED = st.sampled_from(["seed", "SEED", "Seed", "%73eed", "%2573eed", "s%65ed", "seed%20", "+seed", "seed[]"])
_VALUE = st.integers(0, 99).filter(lambda number: number != SEED).map(str)
_PIECES = st.lists(st.sampled_from(["level=2", "x", "a=b", "it's=2", "seeded=1", "re-seed"]), max_size=3)


@given(_SPELLED, _VALUE, _PIECES, st.sampled_from("?#/"), st.booleans(), st.booleans())
def test_no_spelling_of_another_seed_is_taken(name, value, pieces, place, own, reset):
    """Beside the task's own seed or without it, in query, fragment or path, in any order."""
    parts = [*pieces, f"{name}={value}"]
    query = "&".join([*([f"seed={SEED}"] if own else []), *(parts if place == "?" else [])])
    rest = "&".join(parts)
    url = f"http://127.0.0.1:1/{rest + '/' if place == '/' else ''}?{query}{'#' + rest if place == '#' else ''}"
    assert _identity().explain_mismatch(url, reset=reset)


@given(st.text(max_size=30), st.lists(st.sampled_from(["level=2", "x", "a=b", "q=it's"]), max_size=3))
def test_other_words_in_an_address_do_no_harm(text, pieces):
    url = f"http://127.0.0.1:1/{quote(text.replace('=', ''))}?{'&'.join([*pieces, f'seed={SEED}'])}"
    assert _identity().explain_mismatch(url, reset=False) == ""


def test_what_a_form_posted_says_more_than_its_address():
    url = f"http://127.0.0.1:1/?seed={SEED}"
    assert _identity().explain_mismatch(url, reset=False) == ""
    assert _identity().explain_mismatch(url, reset=False, posted=True) == "a form's content led to it"
