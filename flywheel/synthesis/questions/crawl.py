"""Crawl a site along its links from the start page, within a budget, and count the pages that are left out."""

from __future__ import annotations

import hashlib
import re
import time
import urllib.robotparser
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urljoin, urlsplit

import httpx

from flywheel.envs.browser.pages.file_server import ServedFolder
from flywheel.synthesis.questions.pages import SitePage, decode_page, parse_page

_SESSION_NAME = re.compile(r"(php|j|asp\.?net_?)?_?sess(ion)?_?id|sid|s|utm_\w+|token", re.I)
_PATH_SESSION = re.compile(r";(jsessionid|sid)=[^/?]*", re.I)
_NAMED = 5  # addresses that the funnel names for each reason
_REDIRECTS = 5


@dataclass(frozen=True)
class CrawlBudget:
    """Hold the limits of a crawl. pages: number of them. page_bytes, all_bytes: of one page, and of all. depth: clicks
    from the start. same_shape: pages whose addresses differ in numbers or a query alone."""

    pages: int = 2000
    page_bytes: int = 2_000_000
    all_bytes: int = 300_000_000
    depth: int = 12
    seconds: float = 600.0
    same_shape: int = 200


@dataclass
class Crawl:
    """Hold the pages of a crawl, by address. skipped: reason -> count of pages left out. named: reason -> the first
    addresses."""

    start: str
    pages: dict[str, SitePage] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    named: dict[str, list[str]] = field(default_factory=dict)
    raw: dict[str, str] = field(default_factory=dict)  # HTML of each page, where it is kept
    clicks: dict[str, int] = field(default_factory=dict)  # from the start page
    alias: dict[str, str] = field(default_factory=dict)  # address that was asked for -> that of its page

    def skip(self, reason: str, address: str) -> None:
        """Count a page that is left out."""
        self.skipped[reason] += 1
        if len(self.named.setdefault(reason, [])) < _NAMED:
            self.named[reason].append(address)


# Returns the address after redirects, and the body; or the reason why there is none.
Fetch = Callable[[str], Awaitable[tuple[str, bytes] | str]]


def fetch_from_folder(root: Path, alias: Mapping[str, str], page_bytes: int) -> Fetch:
    """Return a `Fetch` that reads pages from the folder `root`. alias: as in a page manifest. page_bytes: of the
    largest page that is read."""
    folder = ServedFolder(root, alias)

    async def fetch(address: str) -> tuple[str, bytes] | str:
        path = unquote(address.partition("?")[0])
        found = folder.find(f"/{path}")
        if found is not None and found.is_dir():
            path = f"{path.rstrip('/')}/index.html".lstrip("/")
            found = folder.find(f"/{path}")
        if found is None or not found.is_file():
            return "broken link"
        if found.suffix.lower() not in (".html", ".htm", ".xhtml"):
            return "not HTML"
        if found.stat().st_size > page_bytes:
            return "too large"
        try:
            return path, found.read_bytes()
        except OSError:
            return "cannot be read"

    return fetch


def fetch_over_http(client: httpx.AsyncClient, origin: str, page_bytes: int, kind: str = "html") -> Fetch:
    """Return a `Fetch` that requests pages of `origin` by `client`.

    page_bytes: of the largest page that is read. kind: a part of the media type that pages must have. Four redirects
    are followed, none to another origin.
    """

    async def fetch(address: str) -> tuple[str, bytes] | str:
        for _ in range(_REDIRECTS):
            try:
                async with client.stream("GET", f"{origin}/{address}") as answer:
                    if answer.is_redirect:
                        url = urljoin(str(answer.url), answer.headers.get("location", ""))
                        if not url.startswith(f"{origin}/"):
                            return "leads elsewhere"
                        address = url.removeprefix(f"{origin}/").partition("#")[0]
                        continue
                    if answer.status_code in (401, 403):
                        return "login"
                    if answer.status_code != 200:
                        return "broken link"
                    if kind not in answer.headers.get("content-type", ""):
                        return "not HTML"
                    body = bytearray()
                    async for chunk in answer.aiter_bytes(65_536):
                        body += chunk
                        if len(body) > page_bytes:
                            return "too large"
                    return address, bytes(body)
            except (httpx.HTTPError, httpx.InvalidURL, ValueError):
                return "no answer"
        return "redirects without end"

    return fetch


async def read_robots(client: httpx.AsyncClient, origin: str) -> Callable[[str], bool]:
    """Read the robots.txt of `origin`; return a function that tells whether an address may be crawled.

    Where it cannot be read, is no plain text or has more than 500,000 bytes, all may.
    """
    rules = urllib.robotparser.RobotFileParser()
    found = await fetch_over_http(client, origin, 500_000, "text/plain")("robots.txt")
    rules.parse("" if isinstance(found, str) else found[1].decode("utf-8", "replace").splitlines())
    return lambda address: rules.can_fetch("flywheel", f"{origin}/{address}")


def normalise_address(address: str) -> str:
    """Remove the session's id from an address, and sort its query, so that a page has one address."""
    path, mark, query = _PATH_SESSION.sub("", address).partition("?")
    kept = sorted(pair for pair in parse_qsl(query, keep_blank_values=True) if not _SESSION_NAME.fullmatch(pair[0]))
    return f"{path}?{urlencode(kept)}" if mark and kept else path


def _shape(address: str) -> str:
    parts = urlsplit(address)
    names = ",".join(sorted({name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}))
    return re.sub(r"\d+", "0", parts.path) + (f"?{names}" if names else "")


async def crawl_site(
    fetch: Fetch,
    start: str,
    budget: CrawlBudget,
    *,
    origin: str = "http://site.invalid",
    allowed: Callable[[str], bool] = lambda address: True,
    finite: bool = False,
    keep: bool = False,
) -> Crawl:
    """Crawl a site breadth first.

    start: address of the first page. origin: of the site, for its absolute links. allowed: tells whether robots.txt
    allows an address. finite: whether pages are files, so that queries are ignored and shapes are not bounded. keep:
    whether the HTML is kept in `raw`. Pages with the same text count once, so that a crawl of a calendar ends.
    """
    began, size = time.monotonic(), 0
    found, shapes, texts = Crawl(start), Counter(), {}
    waiting, seen = deque([(start, 0)]), {start}
    while waiting:
        address, clicks = waiting.popleft()
        reason = next((name for name, over in (
            ("over the budget of pages", len(found.pages) >= budget.pages),
            ("over the budget of bytes", size > budget.all_bytes),
            ("over the budget of time", time.monotonic() - began > budget.seconds),
            ("forbidden by robots.txt", not allowed(address)),
            ("too deep", clicks > budget.depth),
        ) if over), "")  # fmt: skip
        shape = _shape(address)
        if not reason and not finite and shape != address:
            shapes[shape] += 1
            reason = "trap: too many addresses alike" if shapes[shape] > budget.same_shape else ""
        if reason:
            found.skip(reason, address)
            continue
        answer = await fetch(address)
        if isinstance(answer, str):
            found.skip(answer, address)
            continue
        final, body = answer
        final = final if final == address else normalise_address(final)
        size += len(body)
        if final in found.pages:
            found.alias[address] = final
            continue
        try:
            html = decode_page(body)
            page = parse_page(final, html, origin)
        except (ValueError, AssertionError, RecursionError):
            found.skip("not to be parsed", address)
            continue
        found.alias[address] = final
        digest = hashlib.sha256(f"{page.title}\n{page.text}".encode("utf-8", "replace")).digest()
        if page.login or digest in texts:
            found.skip("login" if page.login else "the same text as another page", address)
            found.alias[address] = texts.get(digest, "")
            continue
        texts[digest] = final
        seen.add(final)
        found.pages[final], found.clicks[final] = page, clicks
        if keep:
            found.raw[final] = html
        for link in page.links:
            target = link.target.partition("?")[0] if finite else normalise_address(link.target)
            if target not in seen:
                seen.add(target)
                waiting.append((target, clicks + 1))
    if found.pages:
        found.start = next(iter(found.pages))
    return found
