"""Read HTML pages: their text, their links, and their pairs of label and value, as in tables and lists.

Hidden parts and scripts are left out: what no reader sees is no fact. Markup is hostile until shown otherwise: nesting,
size and number of nodes are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin, urlsplit

_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_UNSEEN = {"script", "style", "template", "noscript", "svg", "iframe", "select", "textarea", "math"}
_ROW = {"tr", "td", "th", "p"}
_ENDS = {  # tags that an opened one ends where they are still open
    **{tag: {"dt", "dd", "p"} for tag in ("dt", "dd")},
    **{tag: {"td", "th", "p"} for tag in ("td", "th")},
    "li": {"li", "p"},
    "tr": _ROW,
    **{tag: {"thead", "tbody", "tfoot", *_ROW} for tag in ("thead", "tbody", "tfoot")},
    **{tag: {"p"} for tag in ("p", "div", "ul", "ol", "dl", "table", "h1", "h2", "h3", "h4", "h5", "h6", "pre")},
}
_BLOCKS = {*_ENDS, "body", "section", "article", "header", "footer", "nav", "main", "br", "hr", "caption", "blockquote"}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5"}
_DEEPEST, _MOST_NODES = 100, 100_000
LONGEST_LABEL, LONGEST_VALUE = 40, 80  # characters of what counts as a label and as a value
_LINE = re.compile(r"([A-Z][\w /()-]{1,39}): ([^:]{1,80})")
_PERMALINK = re.compile(r"\s*[¶§#]$")  # at the end of a heading
# Parts of a page that are of the site: what they tell is no fact of the page.
_FRAME = re.compile(r"(^|[-_ ])(nav\w*|foot\w*|menu|toc|(top|bottom)?lang|breadcrumbs?|sidebar)($|[-_ ])")
_BETWEEN_LINKS = re.compile(r"[\s,;|/·•–.&()-]|\band\b|\bor\b")


@dataclass
class _Node:
    tag: str
    attrs: dict[str, str]
    parts: list[_Node | str] = field(default_factory=list)

    def nodes(self) -> list[_Node]:
        return [part for part in self.parts if not isinstance(part, str)]

    def walk(self) -> Iterator[_Node | str]:
        """Yield what lies in the node in the order of the document, itself first; a block's end is a line break."""
        stack: list[_Node | str] = [self]
        while stack:
            one = stack.pop()
            yield one
            if not isinstance(one, str):
                if one.tag in _BLOCKS:
                    stack.append("\n")
                stack.extend(reversed(one.parts))

    def text(self) -> str:
        return " ".join("".join(one for one in self.walk() if isinstance(one, str)).split())

    def find(self, *tags: str) -> list[_Node]:
        return [one for one in self.walk() if not isinstance(one, str) and one.tag in tags and one is not self]


class _TreeBuilder(HTMLParser):
    """Build a tree of what is seen. Raises ValueError for a page of too many nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.root = _Node("html", {})
        self._open, self._unseen, self._nodes = [self.root], 0, 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._unseen:
            self._unseen += tag not in _VOID
            return
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise ValueError("too many nodes")
        own = {name: value or "" for name, value in attrs}
        hidden = "hidden" in own or re.search(r"display:\s*none|visibility:\s*hidden", own.get("style", ""))
        if tag in _UNSEEN or (hidden and tag not in _VOID):
            self._unseen = 1
            return
        ends = _ENDS.get(tag, ())
        while len(self._open) > 1 and self._open[-1].tag in ends:
            self._open.pop()
        node = _Node(tag, own)
        self._open[-1].parts.append(node)
        if tag not in _VOID and len(self._open) < _DEEPEST:
            self._open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID or not self._unseen:
            self.handle_starttag(tag, attrs)
            if tag not in _VOID:
                self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._unseen:
            self._unseen -= tag not in _VOID
            return
        for place in range(len(self._open) - 1, 0, -1):
            if self._open[place].tag == tag:
                del self._open[place:]
                return
            if self._open[place].tag == "table" and tag not in ("div", "body"):
                return

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self._open[-1].parts.append(data)


@dataclass(frozen=True)
class PageLink:
    """Hold a link: its text, the address of the page in the site (`target`), and the place in it (`anchor`)."""

    text: str
    target: str
    anchor: str = ""


@dataclass(frozen=True)
class LabelledValue:
    """Hold a value that a page gives under a label.

    section: (anchor, heading) of the part of the page it stands in. subject: of a table's row, its first cell's text
    and link; None: the page or section itself. links: within the value. all_links: the value is links alone.
    """

    section: tuple[str, str]
    label: str
    value: str
    links: tuple[PageLink, ...] = ()
    all_links: bool = False
    subject: tuple[str, PageLink | None] | None = None


@dataclass
class SitePage:
    """Hold one parsed page of a site. address: within the site, without a leading slash. heading: the first h1; ""
    where there is none. login: whether it asks for a password."""

    address: str
    title: str
    heading: str
    text: str
    links: list[PageLink]
    values: list[LabelledValue]
    login: bool = False


def resolve_address(base: str, href: str) -> tuple[str, str] | None:
    """Resolve a link to its URL without fragment, and the fragment; None for one that is not of http, or malformed.

    base: URL of the link's page.
    """
    try:
        url, fragment = urldefrag(urljoin(base, href.strip()))
        return (url, fragment) if urlsplit(url).scheme in ("http", "https") else None
    except ValueError:
        return None


class _Reader:
    def __init__(self, address: str, html: str, origin: str) -> None:
        builder = _TreeBuilder()
        builder.feed(html)
        builder.close()
        self.root, self.origin = builder.root, origin
        base = next((one.attrs["href"] for one in self.root.find("base") if one.attrs.get("href")), "")
        self.base = urljoin(f"{origin}/{address}", base)
        self.address = address
        self.values: list[LabelledValue] = []
        self._section = ("", "")

    def links(self, node: _Node) -> tuple[PageLink, ...]:
        found = []
        for one in node.find("a") + ([node] if node.tag == "a" else []):
            if (href := one.attrs.get("href")) and (resolved := resolve_address(self.base, href)):
                url, fragment = resolved
                if url.startswith(f"{self.origin}/"):
                    found.append(PageLink(one.text(), url.removeprefix(f"{self.origin}/"), fragment))
        return tuple(found)

    def page(self) -> SitePage:
        title = next((one.text() for one in self.root.find("title")), "")
        heading = next((_PERMALINK.sub("", one.text()) for one in self.root.find("h1")), "")
        body = next(iter(self.root.find("body")), self.root)
        login = any(one.attrs.get("type", "").lower() == "password" for one in self.root.find("input"))
        self._take(body)
        return SitePage(self.address, title, heading, body.text(), list(self.links(body)), self.values, login)

    def _add(self, label: str, value: _Node, subject: tuple[str, PageLink | None] | None = None) -> None:
        label, text = _PERMALINK.sub("", label.strip()).rstrip(":").strip(), value.text()
        if not (0 < len(label) <= LONGEST_LABEL and text and re.search(r"[^\W\d_]", label)):
            return
        links = self.links(value)
        rest = text
        for link in sorted(links, key=lambda one: -len(one.text)):
            rest = rest.replace(link.text, " ", 1)
        whole = bool(links) and not _BETWEEN_LINKS.sub("", rest)
        if len(text) <= LONGEST_VALUE or whole:
            self.values.append(LabelledValue(self._section, label, text, links, whole, subject))

    def _take(self, body: _Node) -> None:
        stack: list[tuple[_Node, _Node | None, int]] = [(body, None, 0)]
        while stack:
            node, parent, place = stack.pop()
            if node.tag in ("nav", "footer") or _FRAME.search(
                f"{node.attrs.get('class', '')} {node.attrs.get('id', '')}"
            ):
                continue
            if node.tag in _HEADINGS:
                self._head(node, parent, place)
            elif node.tag == "table" and not node.find("table"):
                self._table(node)
            elif node.tag in ("li", "p") and not node.find("li", "p", "table", "dl"):
                self._line(node)
            else:
                if node.tag == "dl":
                    self._list(node)
                stack.extend((part, node, n) for n, part in reversed(list(enumerate(node.nodes()))))

    def _head(self, node: _Node, parent: _Node | None, place: int) -> None:
        """Begin a section; where all of it is one short paragraph or list, its heading is that one's label."""
        around = parent.nodes() if parent else []
        named = [one.attrs.get("id") or one.attrs.get("name") for one in (node, *node.find("a"))]
        if place and around[place - 1].tag == "a":
            named.append(around[place - 1].attrs.get("name") or around[place - 1].attrs.get("id"))
        outer = self._section
        self._section = (
            ("", "") if node.tag == "h1" else (next(filter(None, named), ""), _PERMALINK.sub("", node.text()))
        )
        after = around[place + 1 : place + 3]
        short = after and after[0].tag in ("p", "ul", "ol", "div") and not after[0].find("table", "dl", *_HEADINGS)
        if short and node.tag != "h1" and (len(after) < 2 or after[1].tag in _HEADINGS):
            inner, self._section = self._section, outer if outer[1] == "" else ("", "")
            self._add(node.text(), after[0])
            self._section = inner

    def _table(self, table: _Node) -> None:
        rows = [[cell for cell in row.nodes() if cell.tag in ("td", "th")] for row in table.find("tr")]
        rows = [row for row in rows if row]
        if len(rows) > 2 and len(rows[0]) > 1 and all(cell.tag == "th" for cell in rows[0]):
            labels = [cell.text() for cell in rows[0]]
            for row in rows[1:]:
                if len(row) == len(labels):
                    links = self.links(row[0])
                    subject = row[0].text(), links[0] if len(links) == 1 else None
                    for label, cell in zip(labels[1:], row[1:], strict=True):
                        if 0 < len(subject[0]) <= LONGEST_VALUE:
                            self._add(label, cell, subject)
            return
        pairs = [row for row in rows if len(row) == 2 and row[1].tag == "td"]
        told = [(label.text(), label.tag == "th" or bool(label.find("b", "strong")), cell) for label, cell in pairs]
        if len({label for label, _, _ in told}) == len(told):
            for label, marked, cell in told:
                if marked or label.endswith(":"):
                    self._add(label, cell)

    def _list(self, node: _Node) -> None:
        label = None
        for one in node.nodes():
            if one.tag == "dd" and label is not None:
                self._add(label.text(), one)
            label = one if one.tag == "dt" else None

    def _line(self, node: _Node) -> None:
        first = next((part for part in node.parts if not isinstance(part, str) or part.strip()), "")
        if not isinstance(first, str) and first.tag in ("b", "strong", "dt"):
            rest = node.parts[node.parts.index(first) + 1 :]
            follows = rest[0] if rest and isinstance(rest[0], str) else ""
            if first.text().endswith(":") or follows.lstrip().startswith(":"):
                value = _Node("span", {}, [follows.lstrip().removeprefix(":"), *rest[1:]] if follows else rest)
                self._add(first.text(), value)
        elif (text := node.text()) and len(text) < 125 and (match := _LINE.fullmatch(text)):
            self._add(match[1], _Node("span", {}, [match[2]]))


def parse_page(address: str, html: str, origin: str = "http://site.invalid") -> SitePage:
    """Parse a page's HTML. address: within the site, which is at `origin`. Raises ValueError for too many nodes."""
    return _Reader(address, html, origin).page()


def decode_page(body: bytes) -> str:
    """Decode a page by the charset that it declares, else as UTF-8; what cannot be decoded is replaced."""
    declared = re.search(rb"charset=[\"']?([\w-]+)", body[:2048])
    try:
        return body.decode(declared[1].decode() if declared else "utf-8", "replace")
    except LookupError:
        return body.decode("utf-8", "replace")
