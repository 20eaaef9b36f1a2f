"""BrowserGym's side of `flywheel bench sandbox`, run by the Python of an environment of its own. No benchmark itself.

Reads a JSON object a line, {"open": settings of the environment} or {"steps": n}, and answers with one: the shape of
the screenshot, or the seconds of each step that did what it should. A step clicks the first checkbox by its bid, as
an agent would; on a busy machine BrowserGym gives such a click up after half a second.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time

import browsergym.miniwob  # noqa: F401  registers the tasks
import gymnasium
import playwright.sync_api

TRIES = 3


def checkbox(obs: dict) -> str:
    """bid of the first checkbox in the accessibility tree."""
    for node in obs["axtree_object"]["nodes"]:
        if node.get("role", {}).get("value") == "checkbox" and "browsergym_id" in node:
            return node["browsergym_id"]
    raise SystemExit("BrowserGym sees no checkbox on its page")


def opened(options: dict) -> tuple:
    """Environment and first observation. BrowserGym gives a page five seconds to load: not always enough when busy."""
    for tries_left in reversed(range(TRIES)):
        env = gymnasium.make("browsergym/miniwob.click-checkboxes", **options)
        try:
            return env, env.reset(seed=0)[0]
        except playwright.sync_api.TimeoutError:
            env.close()  # half open, it is of no further use
            if not tries_left:
                raise


def serve(lines, answer) -> None:
    env = action = None
    for line in lines:
        asked = json.loads(line)
        if "open" in asked:
            env, obs = opened(asked["open"])
            action = f"click('{checkbox(obs)}')"
            answer({"shape": list(obs["screenshot"].shape)})
        else:
            seconds, failed = [], ""
            for _ in range(asked["steps"]):
                begin = time.perf_counter()
                obs, _, _, _, _ = env.step(action)
                if obs["last_action_error"]:
                    failed = obs["last_action_error"].partition("\n")[0]
                else:
                    seconds.append(time.perf_counter() - begin)
            answer({"seconds": seconds, "failed": failed})
    if env is not None:
        env.close()


if __name__ == "__main__":
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        serve(sys.stdin, lambda row: print(json.dumps(row), file=out, flush=True))
