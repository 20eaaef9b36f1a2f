"""Documents come with a policy of ours that forbids nothing and reports every request as it begins.

A page's clock must stand still while something loads, and no script can see an `import()`, or the picture that a style
sheet asks for. `Content-Security-Policy-Report-Only` makes the browser tell the document of each (`loads.js`), at the
very place of the page's own order of events. The page's policies are its own, and hold as ever.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flywheel.sandbox.page import Page

_INLINE = "'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' data: blob:"
_DATA = "data: blob:"
POLICY = f"script-src-elem {_INLINE}; style-src-elem {_INLINE}; img-src {_DATA}; font-src {_DATA}; connect-src {_DATA}"
PATTERNS = tuple(
    {"urlPattern": "*", "resourceType": "Document", "requestStage": stage} for stage in ("Request", "Response")
)
_DOCUMENTS = ("text/html", "application/xhtml+xml", "image/svg+xml")
_STALE = ("content-encoding", "content-length", "transfer-encoding")  # of the body as it was sent, not as we have it


def answered(params: Mapping[str, Any]) -> bool:
    """Whether a paused request has its answer, and is not yet to be sent."""
    return "responseStatusCode" in params or "responseErrorReason" in params


def pass_on(page: Page, params: Mapping[str, Any]) -> None:
    """Let an answer go on: a document with the policy, anything else as it is.

    A document is given anew, since a browser has read the policies of an answer before it lets us see it.
    """
    on = {"requestId": params["requestId"]}
    headers = [(one["name"], one["value"]) for one in params.get("responseHeaders", [])]
    status, kinds = params.get("responseStatusCode", 0), {name.lower(): value.lower() for name, value in headers}
    shown = kinds.get("content-type", "").startswith(_DOCUMENTS) and "content-disposition" not in kinds
    if not shown or 300 <= status < 400 or status == 204:
        page.post("Fetch.continueRequest", on)
        return
    kept = [(name, value) for name, value in headers if name.lower() not in _STALE]
    told = [*kept, ("Content-Security-Policy-Report-Only", POLICY)]

    def give(body: asyncio.Future[dict[str, Any]]) -> None:
        if body.cancelled() or body.exception() is not None:  # it broke off: let the browser say so
            page.post("Fetch.continueRequest", on)
            return
        text, encoded = body.result()["body"], body.result()["base64Encoded"]
        page.post(
            "Fetch.fulfillRequest",
            on
            | {
                "responseCode": status,
                "responseHeaders": [{"name": name, "value": value} for name, value in told],
                "body": text if encoded else base64.b64encode(text.encode()).decode(),
            },
        )

    page.send("Fetch.getResponseBody", on).add_done_callback(give)
