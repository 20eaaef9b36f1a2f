"""Whether a document poses the task that was set, or one that the policy chose.

A seed or a variant in an address can be typed by anybody who may navigate, under many spellings; and a page that draws
its task by lot draws another one when it is loaded again. A score counts only on the task that was set.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote_plus, urlsplit

from flywheel.sandbox.manifest_parts import Parameter
from flywheel.sandbox.manifests import PageManifest

_LAYERS = 5  # of percent signs


class Identity:
    """One session's task. address: of its first page, as it was asked for."""

    def __init__(self, manifest: PageManifest, address: str, variant: str, seed: int) -> None:
        template = manifest.url or manifest.first
        asked = [
            (name, text.replace("{variant}", variant))
            for name, text in parse_qsl(urlsplit(template).query)
            if "{variant}" in text
        ]
        if isinstance(manifest.reset, Parameter):
            asked = [pair for pair in asked if pair[0] != manifest.reset.parameter]
            asked.append((manifest.reset.parameter, str(seed)))
        self._asked = asked
        self._usual = {name: max(_mentions(address, name), 1) for name, _ in asked}
        others = [one for one in manifest.variants if one != variant]
        place = "{variant}" in template.replace(urlsplit(template).query, "")
        self._others = {_place(template.replace("{variant}", one)) for one in others if place}
        self._vouched = manifest.follow is True
        # Where nothing but chance makes the task, it is another one in each document that draws from it.
        texts = [*manifest.expressions.values(), manifest.server.model_dump_json() if manifest.server else ""]
        self._by_lot = manifest.reset == "reload" and manifest.seeded and not re.search(r"\bseed\b", "\n".join(texts))
        self._drew = False

    def begins(self, drawn: int) -> None:
        """The page is reset. drawn: numbers that its document has taken from its seeded chance."""
        self._drew = drawn > 0

    def strange(self, url: str, *, reset: bool, posted: bool = False, drawn: int = 0) -> str:
        """Why a document poses another task than the one that was set; "" where it does not.

        reset: it is the document that was reset, whose own word on its address counts. posted: it was asked for with a
        form's content, which may say what no address says. drawn: as in `begins`.
        """
        said = parse_qsl(urlsplit(url).query, keep_blank_values=True)
        for name, value in self._asked:
            found, mentions = [text for key, text in said if key == name], _mentions(url, name)
            if not mentions and not found:
                if not reset and not self._vouched:
                    return f"its address has no {name}"
            elif found != [value] or mentions > self._usual[name]:
                return f"its address names another {name}"
        if self._others and _place(url) in self._others:
            return "it is the page of another variant"
        if posted and self._asked and not reset and not self._vouched:
            return "a form's content led to it"
        if self._by_lot and self._drew and drawn and not reset and not self._vouched:
            return "it was drawn by lot anew"
        return ""


def _mentions(url: str, name: str) -> int:
    """How often a parameter is given a value, wherever in the address and however it is spelled."""
    return len(re.findall(rf"(?<!\w){re.escape(name.casefold())}(?=[^\w&]*=)", _plain(_local(url))))


def _place(url: str) -> str:
    """Path and fragment, in one spelling."""
    parts = urlsplit(url)
    path = re.sub(r"/+", "/", "/" + _plain(parts.path))
    return re.sub(r"(^|/)index\.html?$", r"\1", path) + "#" + _plain(parts.fragment)


def _local(url: str) -> str:
    return urlsplit(url)._replace(scheme="", netloc="").geturl()


def _plain(text: str) -> str:
    for _ in range(_LAYERS):
        text = unquote_plus(text)
    return text.casefold()
