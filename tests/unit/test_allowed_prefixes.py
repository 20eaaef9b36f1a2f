"""Which addresses lie under a prefix that a page may reach."""

import pytest

from flywheel.envs.browser.driver.context import is_within_prefixes


@pytest.mark.parametrize(
    ("prefix", "inside", "outside"),
    [
        ("http://host", ("http://host", "http://host/a"), ("http://host.other/", "http://hostess/", "https://host/")),
        ("http://host/app", ("http://host/app", "http://host/app/a", "http://host/app?q=1"), ("http://host/apple",)),
        ("http://host:1/", ("http://host:1/a", "http://host:1/"), ("http://host:12/",)),
    ],
)
def test_a_prefix_ends_where_a_name_ends(prefix, inside, outside):
    assert all(is_within_prefixes(url, (prefix,)) for url in inside)
    assert not any(is_within_prefixes(url, (prefix,)) for url in outside)
