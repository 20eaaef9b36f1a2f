"""How a session comes in: cookies and headers that the browser sends, a form filled in before the first page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from flywheel.sandbox.manifests import PageManifest

_DONE_MS = 5_000  # page time after which one is not logged in
# As a page's own script library would do it: the value set past the page's own setter, then told.
_FILL = """const find = (selector) => document.querySelector(selector)
  ?? (() => { throw new Error(`login: there is no ${selector} on this page`); })();
for (const [selector, text] of Object.entries(%s)) {
  const node = find(selector);
  node.focus();
  Object.getOwnPropertyDescriptor(Object.getPrototypeOf(node), "value").set.call(node, text);
  for (const kind of ["input", "change"]) node.dispatchEvent(new Event(kind, { bubbles: true }));
}
find(%s).click();"""
_WAIT = """const done = (0, eval)(%s);
for (let passed = 0; !done(); passed += 50) {
  if (passed >= %d) throw new Error("login.done: it is still not true on the first page");
  await new Promise((resolve) => setTimeout(resolve, 50));
}"""


@dataclass(frozen=True)
class Entry:
    """address, script: the page to log in on ("": the first one), and JavaScript run there ("": nobody logs in).

    done: JavaScript run on the first page then, which ends when one is logged in ("": not asked).
    """

    cookies: tuple[Mapping[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    script: str = ""
    done: str = ""


def entry_of(manifest: PageManifest, origin: str, names: Mapping[str, str]) -> Entry | None:
    """names: what `{seed}` and `{variant}` stand for in the texts of a login."""
    login = manifest.login
    if login is None:
        return None

    def fill(text: str) -> str:
        for name, value in names.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    cookies = tuple({"name": name, "value": fill(text), "url": f"{origin}/"} for name, text in login.cookies.items())
    texts = {selector: fill(text) for selector, text in login.fill.items()}
    script = login.run or (_FILL % (json.dumps(texts), json.dumps(login.submit)) if texts else "")
    done = _WAIT % (json.dumps(f"() => (\n{login.done}\n)"), _DONE_MS) if login.done else ""
    address = origin + fill(login.address) if login.address else ""
    return Entry(cookies, {name: fill(text) for name, text in login.headers.items()}, address, script, done)
