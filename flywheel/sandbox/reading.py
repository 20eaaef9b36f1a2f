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
from flywheel.sandbox.manifests import Manifest, Parameter

READY_MS = 5_000  # page time after which a page that is not ready is given up
_SCRIPT = (Path(__file__).parent / "reading.js").read_text(encoding="utf-8")
_KINDS = {"reward": "a number", "success": "a number", "end": "true or false", "instruction": "a text"}
_TRY = "see it with `flywheel page try`"


def prepare(manifest: Manifest, seed: int, variant: str) -> str:
    """Statements to run once after the load; they return a promise that holds when the page is reset."""
    how = {"readyMs": READY_MS, "settleMs": manifest.settle_ms}
    return f"return {_call('prepare', manifest, seed, variant, how)};"


def expression(manifest: Manifest, seed: int, variant: str) -> str:
    """JavaScript whose value tells the state, for `state`."""
    return _call("read", manifest, seed, variant)


def _call(function: str, manifest: Manifest, seed: int, variant: str, *more: object) -> str:
    fields = {field: {"kind": _KINDS.get(field), "text": text} for field, text in manifest.expressions.items()}
    reset = None if manifest.reset == "reload" or isinstance(manifest.reset, Parameter) else manifest.reset
    asked = {"fields": fields, "ready": manifest.ready, "reset": reset}
    given = ", ".join(json.dumps(value) for value in (seed, variant, asked, *more))
    return f"(() => {{\n{_SCRIPT}\nreturn {function}({given});\n}})()"


class Reader:
    """What the verifier reads of one session: reward, success, floor, terminated; the instruction where the page tells
    it, the recorded values, and the page they were read on.

    A page that was reset must tell everything. One that it led to may lack some of it (a page that is not there tells
    nothing): then what was told last still holds, and `unread` says why.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest, self._follows = manifest, manifest.follows
        self._last: dict[str, Any] | None = None

    def state(self, told: Any, page: str) -> dict[str, Any]:
        """told: the value of `expression`. page: where the page is. Raises EnvError naming the field at fault."""
        manifest = self._manifest
        if not isinstance(told, Mapping) or "faults" not in told:
            raise EnvError(f"{manifest.path.name}: the page tells nothing", where=page, fix=_TRY)
        values, faults = told["values"], told["faults"]
        if self._last is None:
            self._follows |= not told["prepared"]  # the reset itself went to another page
        elif not told["prepared"]:
            faults = faults if self._follows else dict.fromkeys(manifest.expressions, "this page was not reset")
            values = {**self._last, **(values if self._follows else {})}
            told = {**told, "faults": {}}
        if told["faults"]:
            raise _fault(manifest, told, page)
        success = values.get("success", manifest.success)
        if success <= manifest.floor:
            raise EnvError(
                f"{manifest.path.name}: success: it gives {success:g}, which is not above floor: {manifest.floor:g}",
                where=page, fix="let it give the reward at which the task is solved",
            )  # fmt: skip
        self._last = values
        kept = {field.partition(".")[2]: value for field, value in values.items() if field.startswith("state.")}
        result = {
            "page": page, "reward": values["reward"], "success": success, "floor": manifest.floor,
            "terminated": values.get("end", False), "values": kept,
        }  # fmt: skip
        result |= {"instruction": values["instruction"]} if "instruction" in values else {}
        return result | ({"unread": faults} if faults else {})


def _fault(manifest: Manifest, told: Mapping[str, Any], page: str) -> EnvError:
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
