"""What a manifest asks of its page, as JavaScript, and what the answer means.

Everything that is wrong with a manifest's expressions comes back by the name of its field: an exception inside one,
a text where a number is needed, an object that the page never defines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flywheel.errors import EnvError
from flywheel.sandbox.identity import Identity
from flywheel.sandbox.manifest_parts import Parameter
from flywheel.sandbox.manifests import PageManifest

READY_MS = 5_000  # page time after which a page that is not ready is given up
_SCRIPT = (Path(__file__).parent / "reading.js").read_text(encoding="utf-8")
_KINDS = {"reward": "a number", "success": "a number", "end": "true or false", "instruction": "a text"}
_TRY = "see it with `flywheel page try`"


def prepare(manifest: PageManifest, seed: int, variant: str) -> str:
    """Statements to run once after the load; they return a promise that holds when the page is reset."""
    how = {"readyMs": READY_MS, "settleMs": manifest.settle_ms}
    return f"return {_call('prepare', manifest, seed, variant, how)};"


def expression(manifest: PageManifest, seed: int, variant: str) -> str:
    """JavaScript whose value tells the state, for `state`."""
    return _call("read", manifest, seed, variant)


def _call(function: str, manifest: PageManifest, seed: int, variant: str, *more: object) -> str:
    fields = {field: {"kind": _KINDS.get(field), "text": text} for field, text in manifest.expressions.items()}
    reset = None if manifest.reset == "reload" or isinstance(manifest.reset, Parameter) else manifest.reset
    asked = {"fields": fields, "ready": manifest.ready, "reset": reset}
    given = ", ".join(json.dumps(value) for value in (seed, variant, asked, *more))
    return f"(() => {{\n{_SCRIPT}\nreturn {function}({given});\n}})()"


class Reader:
    """What the verifier reads of one session: reward, success, floor, terminated; the instruction where it is not a
    text of the manifest, the recorded values, and the page they were read on.

    A page that was reset must tell everything. One that it led to may lack some of it (a page that is not there tells
    nothing): then what was told last still holds, and `unread` says why. So it does on a page that poses another task
    than the one that was set, which is noted.
    """

    def __init__(self, manifest: PageManifest, identity: Identity) -> None:
        self._manifest, self._identity, self._follows = manifest, identity, manifest.follows
        self._last: dict[str, Any] | None = None
        self._moved = False  # the document that was reset asks something else now

    def untold(self, page: str) -> dict[str, Any]:
        """What holds while the page cannot be asked, since its dialog waits for an answer: what it told last."""
        last = self._last or {}
        floor, success = self._manifest.floor, self._manifest.success
        numeric = success if isinstance(success, int | float) else floor + 1
        return self._told({"reward": floor, "success": numeric} | last, page)

    def state(self, seen: Mapping[str, Any], page: str) -> dict[str, Any]:
        """seen: `game`, the value of `expression`; `served`, what was read outside of the page; `url`, `drawn` and
        `posted` of the document. page: where it is, as it is told. Raises EnvError naming the field at fault.
        """
        manifest, told = self._manifest, seen.get("game")
        if not isinstance(told, Mapping) or "faults" not in told:
            if self._last is None or manifest.expressions:
                raise EnvError(f"{manifest.path.name}: the page tells nothing", where=page, fix=_TRY)
            told = {"values": {}, "faults": {}, "prepared": False}
        values, faults, strange, first = told["values"], told["faults"], "", self._last is None
        if first:
            self._follows |= not told["prepared"]  # the reset itself went to another page
            self._identity.begins(seen.get("drawn", 0))
            self._last = {}
        elif strange := self._strange(told, seen):
            values, faults = {}, dict.fromkeys(manifest.expressions, strange)
        if faults and (first or told["prepared"]) and not strange:
            raise _fault(manifest, told, page)
        asked = self._last.get("instruction")
        self._last = values = {**self._last, **values, **seen.get("served", {})}
        if asked is not None:
            values["instruction"] = asked
        return self._result(values, faults, strange, page)

    def _strange(self, told: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
        """Why what a document tells does not count; "" where it does."""
        reset = told["prepared"]
        if not (reset or self._follows):
            return "this page was not reset"
        strange = self._identity.strange(
            seen.get("url", ""), reset=reset, posted=seen.get("posted", False), drawn=seen.get("drawn", 0)
        )
        asks, asked = told["values"].get("instruction"), self._last.get("instruction")
        other = asks is not None and asked is not None and asks.split() != asked.split()
        moved, self._moved = self._moved, other and reset
        # A page that goes on to its next task as this one is solved tells both at once: that look counts.
        return strange or ("it asks something else" if other and (moved or not reset) else "")

    def _result(self, values: dict[str, Any], faults: Mapping[str, str], strange: str, page: str) -> dict[str, Any]:
        manifest = self._manifest
        success = values.get("success", manifest.success)
        if success <= manifest.floor:
            raise EnvError(
                f"{manifest.path.name}: success: it gives {success:g}, which is not above floor: {manifest.floor:g}",
                where=page,
                fix="let it give the reward at which the task is solved",
            )
        result = self._told({"success": success} | values, page)
        result |= {"unread": faults} if faults else {}
        if strange and "reward" in manifest.expressions:
            result["note"] = f"the page is on another task, and nothing counts here: {strange}"
        return result

    def _told(self, values: Mapping[str, Any], page: str) -> dict[str, Any]:
        kept = {field.partition(".")[2]: value for field, value in values.items() if field.startswith("state.")}
        result = {
            "page": page,
            "reward": values["reward"],
            "success": values["success"],
            "floor": self._manifest.floor,
            "terminated": values.get("end", False),
            "values": kept,
        }
        return result | ({"instruction": values["instruction"]} if "instruction" in values else {})


def page_reward(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """The verifier of all manifests: the way from `floor` to `success` that the reward has gone."""
    done = (state["reward"] - state["floor"]) / (state["success"] - state["floor"])
    return min(max(float(done), 0.0), 1.0)


def _fault(manifest: PageManifest, told: Mapping[str, Any], page: str) -> EnvError:
    """The first fault in one line, with what speaks for a cause."""
    field, fault = next(iter(told["faults"].items()))
    more = f" (and {len(told['faults']) - 1} more fields)" if len(told["faults"]) > 1 else ""
    failed = ", ".join(told.get("failed", ()))
    if failed:
        fix = f"the page could not load {failed}: no other machine is reached; serve a copy, or name an alias"
    elif fault.startswith("SyntaxError"):
        fix = f"{field} must be {'JavaScript' if field == 'reset' else 'one JavaScript expression'}"
    elif field == "ready":
        fix = "see what the page waits for, or take ready out"
    elif fault.startswith("ReferenceError") or "undefined" in fault:
        fix = "the page does not define it (yet): give `ready: typeof NAME !== 'undefined'`, or read the document"
        if told.get("modules"):
            fix = "the page's scripts are modules, whose variables cannot be seen: read the document instead"
    elif "a number is needed" in fault and "the text" in fault:
        fix = "write Number(...) around it"
    elif "true or false" in fault:
        fix = "write a comparison, or Boolean(...) around it"
    else:
        fix = _TRY
    return EnvError(f"{manifest.path.name}: {field}: {fault}{more}", where=page, fix=fix)
