"""Play a question in the browser by its proof: click from page to page, scroll to the answer, say it."""

from __future__ import annotations

import json
from typing import Any

from flywheel.agent.actions import Action, Click, Finished, Point, Scroll, Wait
from flywheel.envs.base import StepResult
from flywheel.utils.errors import EnvError

_SCROLLS = 1000  # of one page, at most
_WAITS = 5  # steps until a click must have led on

# Returns where a link to the page, or the text, is to be seen: [x, y] in fractions of the screen; "down" or "up" where
# it is out of sight; null where there is none.
_FIND = """((target, text) => {
  const seen = (n) => { const r = n.getBoundingClientRect();
    return r.width > 1 && r.height > 1 && getComputedStyle(n).visibility !== "hidden"; };
  const path = (url) => decodeURIComponent(url.pathname + url.search)
    .replace(/^\\//, "").replace(/(^|\\/)index\\.html?$/, "$1");
  const want = path(new URL(target, location.origin + "/"));
  let found = [];
  if (text === null) found = [...document.links].filter((a) => path(new URL(a.href)) === want && seen(a));
  else {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_ELEMENT);
    const plain = (s) => s.replace(/\\s+/g, " ").trim();
    for (let n = walker.nextNode(); n; n = walker.nextNode())
      if (plain(n.textContent).includes(text) && seen(n)) found.push(n);
    found = found.filter((n) => ![...n.children].some((c) => found.includes(c)));
  }
  if (!found.length) return null;
  const places = found.map((n) => [n, n.getClientRects()[0] || n.getBoundingClientRect()]);
  const at = (r) => [r.x + Math.min(r.width / 2, 40), r.y + r.height / 2];
  for (const [n, r] of places) {
    const [x, y] = at(r), top = document.elementFromPoint(x, y);
    if (top && (n.contains(top) || top.contains(n) && text !== null)) return [x / innerWidth, y / innerHeight];
  }
  return at(places[0][1])[1] > innerHeight / 2 ? "down" : "up";
})"""
_PATH = (
    'decodeURIComponent(location.pathname + location.search).replace(/^\\//, "").replace(/(^|\\/)index\\.html?$/, "$1")'
)


async def play_proof(env: Any, way: list[str], answer: str) -> tuple[StepResult, list[Action]]:
    """Play a question after its reset, by the ordinary actions; the page is asked where its links are.

    env: a browser's. way: addresses of the proof's pages, the first of which is open. answer: scrolled to and said.
    Returns the last step's result, and the actions. Raises EnvError where a link of the way, or the answer, is not to
    be seen on its page, or the steps are used up before it is said, and as the environment does.
    """
    done: list[Action] = []

    async def act(action: Action) -> StepResult:
        done.append(action)
        result = await env.step(action)
        if (result.terminated or result.truncated) and not isinstance(action, Finished):
            raise EnvError(f"its {len(done)} steps are used up", where=way[-1])
        return result

    async def look_for(target: str, text: str | None) -> Point:
        for _ in range(_SCROLLS):
            found = await env.tab.evaluate(f"{_FIND}({json.dumps(target)}, {json.dumps(text)})")
            if isinstance(found, list):
                return Point(min(max(found[0], 0.0), 0.999), min(max(found[1], 0.0), 0.999))
            if found is None:
                break
            await act(Scroll(Point(0.5, 0.5), found))
        raise EnvError("no link leads there" if text is None else "the answer is not to be seen", where=target)

    for target in way[1:]:
        await act(Click(await look_for(target, None)))
        for _ in range(_WAITS):
            if await env.tab.evaluate(_PATH) == target.removesuffix("index.html"):
                break
            await act(Wait())
    await look_for(way[-1], answer)
    return await act(Finished(answer)), done
