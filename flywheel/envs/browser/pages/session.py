"""Open sessions of third-party pages: serve them, log in, reset with a seed, and read and score their state."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from flywheel.envs import base
from flywheel.envs.base import Task
from flywheel.envs.browser.page_source import LoginSteps, PageSession, PageSource
from flywheel.envs.browser.pages import packages
from flywheel.envs.browser.pages.manifest import (
    ANSWER_VERIFIER,
    PAGE_VERIFIER,
    PageManifest,
    SeedParameter,
    check_start_page,
)
from flywheel.envs.browser.pages.packages import ServerPrograms
from flywheel.envs.browser.pages.server import FIELD_KINDS, SEE_PAGE_TRY, PageServer
from flywheel.envs.registry import fill_placeholders
from flywheel.envs.suites.changes import is_one_answer
from flywheel.utils.errors import BadInput, EnvError

if TYPE_CHECKING:
    from flywheel.envs.browser.pages.file_server import ServedFolder

# Login: cookies and headers that the browser sends, and a form filled in before the first page.

_LOGIN_TIMEOUT_MS = 5_000  # page time after which a login has failed
_LOGIN_SCRIPT = (Path(__file__).parent / "login.js").read_text(encoding="utf-8")


def make_login_steps(manifest: PageManifest, origin: str, names: Mapping[str, str]) -> LoginSteps | None:
    """Build the steps of a manifest's login; None where it has none.

    origin: of the page, such as "http://127.0.0.1:4100". names: values of `{seed}` and `{variant}` in the texts.
    """
    login, fill = manifest.login, partial(fill_placeholders, values=names)
    if login is None:
        return None
    cookies = tuple({"name": name, "value": fill(text), "url": f"{origin}/"} for name, text in login.cookies.items())
    texts = {selector: fill(text) for selector, text in login.fill.items()}
    filled = f"{_LOGIN_SCRIPT}\nfillIn({json.dumps(texts)}, {json.dumps(login.submit)});" if texts else ""
    waits = f"{_LOGIN_SCRIPT}\nawait waitUntil({json.dumps(login.done)}, {_LOGIN_TIMEOUT_MS});" if login.done else ""
    headers = {name: fill(text) for name, text in login.headers.items()}
    address = origin + fill(login.address) if login.address else ""
    return LoginSteps(cookies, headers, address, login.run or filled, waits)


# Task identity: a policy that may navigate can type another seed or variant into the address, in many spellings; and a
# page that draws its task at random draws another one when it is loaded again. A score counts only on the given task.

_MAX_ENCODINGS = 5  # times that an address is percent-decoded


class TaskIdentity:
    """Detect documents that show another task than the session's, on which nothing may count.

    address: URL of the session's first page, as requested. variant, seed: of the session's task.
    """

    def __init__(self, manifest: PageManifest, address: str, variant: str, seed: int) -> None:
        template = manifest.url or manifest.first
        query = [pair for pair in parse_qsl(urlsplit(template).query) if "{variant}" in pair[1]]
        asked = [(name, text.replace("{variant}", variant)) for name, text in query]
        if isinstance(manifest.reset, SeedParameter):
            asked = [pair for pair in asked if pair[0] != manifest.reset.parameter]
            asked.append((manifest.reset.parameter, str(seed)))
        self._asked = asked
        self._usual = {name: max(_count_mentions(address, name), 1) for name, _ in asked}
        others = [one for one in manifest.variants if one != variant]
        place = "{variant}" in template.replace(urlsplit(template).query, "")
        self._others = {_normalise_address(template.replace("{variant}", other)) for other in others if place}
        self._vouched = manifest.follow is True
        # Where only random numbers make the task, each document that draws some has another task.
        texts = [*manifest.expressions.values(), manifest.server.model_dump_json() if manifest.server else ""]
        self._by_lot = manifest.reset == "reload" and manifest.seeded and not re.search(r"\bseed\b", "\n".join(texts))
        self._drew = False

    def begins(self, drawn: int) -> None:
        """Record that the page was reset. drawn: random numbers that its document took from its seeded generator."""
        self._drew = drawn > 0

    def explain_mismatch(self, url: str, *, reset: bool, posted: bool = False, drawn: int = 0) -> str:
        """Return why a document shows another task than the session's; "" if it does not.

        url: its address. reset: whether it is the document that was reset, whose address may omit the parameters.
        posted: whether it was requested with a form's content, which may name a task. drawn: as in `begins`.
        """
        query = parse_qsl(urlsplit(url).query, keep_blank_values=True)
        for name, value in self._asked:
            found, mentions = [text for key, text in query if key == name], _count_mentions(url, name)
            if not mentions and not found:
                if not reset and not self._vouched:
                    return f"its address has no {name}"
            elif found != [value] or mentions > self._usual[name]:
                return f"its address names another {name}"
        if self._others and _normalise_address(url) in self._others:
            return "it is the page of another variant"
        if posted and self._asked and not reset and not self._vouched:
            return "a form's content led to it"
        if self._by_lot and self._drew and drawn and not reset and not self._vouched:
            return "it was drawn by lot anew"
        return ""


def _count_mentions(url: str, name: str) -> int:
    """Count how often an address assigns the parameter, in any place, letter case and percent-encoding."""
    address = _decode_fully(urlsplit(url)._replace(scheme="", netloc="").geturl())
    return len(re.findall(rf"(?<!\w){re.escape(name.casefold())}(?=[^\w&]*=)", address))


def _normalise_address(url: str) -> str:
    """Return an address's path and fragment in one normal spelling."""
    parts = urlsplit(url)
    path = re.sub(r"/+", "/", "/" + _decode_fully(parts.path))
    return re.sub(r"(^|/)index\.html?$", r"\1", path) + "#" + _decode_fully(parts.fragment)


def _decode_fully(text: str) -> str:
    for _ in range(_MAX_ENCODINGS):
        text = unquote_plus(text)
    return text.casefold()


# The state of a page: a manifest's JavaScript expressions and their values. Errors name the manifest's field.

READY_TIMEOUT_MS = 5_000  # page time after which a page that is not ready has failed
_READING_SCRIPT = (Path(__file__).parent / "reading.js").read_text(encoding="utf-8")


def _script_call(function: str, manifest: PageManifest, seed: int, variant: str, *more: object) -> str:
    """Return JavaScript that calls a function of `reading.js` with these arguments.

    function: `prepare`, whose promise resolves once the page is reset, or `read`, which returns the page's values.
    """
    fields = {field: {"kind": FIELD_KINDS.get(field), "text": text} for field, text in manifest.expressions.items()}
    reset = None if manifest.reset == "reload" or isinstance(manifest.reset, SeedParameter) else manifest.reset
    asked = {"fields": fields, "ready": manifest.ready, "reset": reset}
    given = ", ".join(json.dumps(value) for value in (seed, variant, asked, *more))
    return f"(() => {{\n{_READING_SCRIPT}\nreturn {function}({given});\n}})()"


class PageStateReader:
    """Build the state that a verifier reads from the values that a page of one session gave.

    Its keys: `page`, `reward`, `success`, `floor`, `terminated`, `values` (those recorded for `state.*`), and
    `instruction` where the manifest does not hold its text. The page that was reset must give every value. If a later
    page lacks a value or shows another task, the values read last stay in force, and `unread` has the reason by field.
    """

    def __init__(self, manifest: PageManifest, identity: TaskIdentity) -> None:
        self._manifest, self._identity, self._follows = manifest, identity, manifest.follows
        self._last: dict[str, Any] | None = None
        self._moved = False  # the last look found another instruction in the document that was reset

    def last_state(self, page: str) -> dict[str, Any]:
        """Return the state read last, for a page that a dialog blocks; before the first reading its reward is `floor`.

        page: its address, as shown.
        """
        last = self._last or {}
        floor, success = self._manifest.floor, self._manifest.success
        numeric = success if isinstance(success, int | float) else floor + 1
        return self._told({"reward": floor, "success": numeric} | last, page)

    def state(self, seen: Mapping[str, Any], page: str) -> dict[str, Any]:
        """Build the state from what was just observed.

        seen: `game`, the value of `state_expression`; `served`, values read outside the page; `url`, `drawn` and
        `posted` of the document. page: its address, as shown. Raises EnvError naming the field at fault.
        """
        manifest, told = self._manifest, seen.get("game")
        if not isinstance(told, Mapping) or "faults" not in told:
            if self._last is None or manifest.expressions:
                raise EnvError(f"{manifest.path.name}: the page tells nothing", where=page, fix=SEE_PAGE_TRY)
            told = {"values": {}, "faults": {}, "prepared": False}
        values, faults, strange, first = told["values"], told["faults"], "", self._last is None
        if first:
            self._follows |= not told["prepared"]  # the reset itself led to another page
            self._identity.begins(seen.get("drawn", 0))
            self._last = {}
        elif strange := self._strange(told, seen):
            values, faults = {}, dict.fromkeys(manifest.expressions, strange)
        if faults and (first or told["prepared"]) and not strange:
            raise _reading_error(manifest, told, page)
        asked = self._last.get("instruction")
        self._last = values = {**self._last, **values, **seen.get("served", {})}
        if asked is not None:
            values["instruction"] = asked
        return self._result(values, faults, strange, page)

    def _strange(self, told: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
        """Return why a document's values do not count; "" if they count."""
        reset = told["prepared"]
        if not (reset or self._follows):
            return "this page was not reset"
        posted, drawn = seen.get("posted", False), seen.get("drawn", 0)
        strange = self._identity.explain_mismatch(seen.get("url", ""), reset=reset, posted=posted, drawn=drawn)
        asks, asked = told["values"].get("instruction"), self._last.get("instruction")
        other = asks is not None and asked is not None and asks.split() != asked.split()
        moved, self._moved = self._moved, other and reset
        # A page that goes on to its next task once this one is solved shows both at once: that observation counts.
        return strange or ("it asks something else" if other and (moved or not reset) else "")

    def _result(self, values: dict[str, Any], faults: Mapping[str, str], strange: str, page: str) -> dict[str, Any]:
        manifest = self._manifest
        success = values.get("success", manifest.success)
        if success <= manifest.floor:
            what = f"success: it gives {success:g}, which is not above floor: {manifest.floor:g}"
            fix = "let it give the reward at which the task is solved"
            raise EnvError(f"{manifest.path.name}: {what}", where=page, fix=fix)
        result = self._told({"success": success} | values, page)
        result |= {"unread": faults} if faults else {}
        if strange and "reward" in manifest.expressions:
            result["note"] = f"the page is on another task, and nothing counts here: {strange}"
        return result

    def _told(self, values: Mapping[str, Any], page: str) -> dict[str, Any]:
        kept = {field.partition(".")[2]: value for field, value in values.items() if field.startswith("state.")}
        result = {"page": page, "reward": values["reward"], "success": values["success"]}
        result |= {"floor": self._manifest.floor, "terminated": values.get("end", False), "values": kept}
        return result | ({"instruction": values["instruction"]} if "instruction" in values else {})


def score_page_reward(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Score a page's task: the share of the way from `floor` to `success` that the reward went, in [0, 1].

    params: ignored. state: with `reward`, `floor` and `success`.
    """
    done = (state["reward"] - state["floor"]) / (state["success"] - state["floor"])
    return min(max(float(done), 0.0), 1.0)


def score_page_answer(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Score a page's task that asks for an answer: 0 without a right one, else as `score_page_reward`.

    params: `answer`, texts of which one is to be given. state: `answer`, what the agent said, beside what that reads.
    """
    right = is_one_answer(str(state.get("answer", "")), params["answer"])
    return score_page_reward(params, state) if right else 0.0


def _reading_error(manifest: PageManifest, told: Mapping[str, Any], page: str) -> EnvError:
    """Build the error for the first fault, with a fix for its likely cause."""
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
        fix = SEE_PAGE_TRY
    return EnvError(f"{manifest.path.name}: {field}: {fault}{more}", where=page, fix=fix)


# Sessions: a manifest's page, served from files or by a server of the session's own, reset with the task's seed.


@dataclass(frozen=True)
class ManifestSession:
    """Hold a session of a third-party page (a `PageSession`); its checkpoints are restored by replaying the actions.

    answer: texts of which the agent must give one. backend: the session's own server. entry: its login.
    """

    reader: PageStateReader
    url: str
    allowed: tuple[str, ...]
    viewport: tuple[int, int] | None
    step_ms: int | None
    prepare: str
    state_expression: str
    answer: tuple[str, ...] = ()
    backend: PageServer | None = None
    entry: LoginSteps | None = None
    restorable: bool = False
    files: Path | None = None

    def state(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Build the state that the verifier reads. Raises EnvError naming the manifest's field that was not read."""
        page = str(seen.get("url", self.url))
        for prefix in self.allowed:
            page = page.removeprefix(prefix)
        if "dialog" in seen:
            return self.reader.last_state(page)
        return self.reader.state(seen, page)

    def score(self, state: Mapping[str, Any]) -> float:
        verifier, name = (score_page_answer, ANSWER_VERIFIER) if self.answer else (score_page_reward, PAGE_VERIFIER)
        return base.apply_verifier(verifier, name, {"answer": self.answer}, state, self.url)

    def save_server_state(self) -> bytes:
        return b""

    def restore_server_state(self, kept: bytes) -> None:
        pass

    def close(self) -> None:
        if self.backend is not None:
            self.backend.stop()


class ManifestPages:
    """Serve third-party pages and open sessions (a `PageSource`): `async with ManifestPages(manifests) as pages:`.

    manifests: by name. others: opens tasks that are of no manifest; None: they are refused. Raises BadInput where a
    package is not fetched, or a first page or a server's program is missing; EnvError where files cannot be served.
    """

    def __init__(self, manifests: Mapping[str, PageManifest], others: PageSource | None = None) -> None:
        from flywheel.envs.browser.pages.file_server import FileServer, ServedFolder  # imports a web server

        self._manifests, self._others = dict(manifests), others
        self._served: dict[str, ServedFolder] = {}
        self._programs: dict[str, ServerPrograms] = {}
        self._backends: list[PageServer] = []
        folders: dict[str, ServedFolder] = {}  # manifests of one folder share its port
        for name, manifest in self._manifests.items():
            if manifest.server is not None:
                self._programs[name] = ServerPrograms(manifest)
            elif not manifest.url:
                root = packages.find_served_folder(manifest)
                check_start_page(manifest, root)
                folder = ServedFolder(root, manifest.alias)
                self._served[name] = folders.setdefault(f"{root} {sorted(manifest.alias.items())}", folder)
        self._server = FileServer(list(folders.values()))

    async def __aenter__(self) -> ManifestPages:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*(backend.wait_gone() for backend in self._backends))
        await self._server.__aexit__(*error)

    @property
    def start_s(self) -> float:
        """Return the most seconds that a start of a session's server may take, clean-up included; 0 without servers."""
        servers = [manifest.server for manifest in self._manifests.values() if manifest.server]
        return max((1.5 * server.start_s for server in servers), default=0.0)

    def knows(self, task: Task) -> bool:
        """Tell whether `task` is of one of these manifests."""
        return task.world in self._manifests

    def missed(self, name: str) -> list[str]:
        """List the paths of missing files that the page of the manifest `name` requested from us, oldest first.

        They are the newest 50; none for a page that is served elsewhere or by its own server.
        """
        return list(self._served[name].missed) if name in self._served else []

    def open(self, task: Task, seed: int) -> PageSession:
        """Open a session of a task; its server, where the manifest has one, is not started yet.

        Call it within the block. task: `world` names the manifest, `template` the variant. seed: of the reset. Raises
        BadInput for a task of no manifest, or of an unknown variant, OSError where its server gets no port or folder;
        for a task of `others` what that raises.
        """
        if self._others is not None and not self.knows(task):
            return self._others.open(task, seed)
        manifest = self._manifests.get(task.world)
        if manifest is None:
            raise BadInput(f"no manifest is called {task.world!r}", where=task.task_id, fix="see synthesis.manifests")
        if task.template not in manifest.variants:
            what, where = f"the manifest has no variant {task.template!r}", f"{manifest.path.name}, task {task.task_id}"
            raise BadInput(what, where=where, fix=f"it has {', '.join(manifest.variants)}")
        manifest = manifest.for_variant(task.template)
        backend = self._backend(manifest, task.template, seed)
        origin = backend.origin if backend else manifest.origin or self._server.url(self._served[manifest.name])
        address = manifest.url or f"{origin}/{manifest.first}"
        address = _add_seed_parameter(address.replace("{variant}", task.template), manifest, seed)
        how = {"readyMs": READY_TIMEOUT_MS, "settleMs": manifest.settle_ms}
        return ManifestSession(
            PageStateReader(manifest, TaskIdentity(manifest, address, task.template, seed)),
            address,
            tuple(f"{one}/" for one in (origin, *manifest.origins)),
            manifest.viewport,
            manifest.step_ms,
            f"return {_script_call('prepare', manifest, seed, task.template, how)};",
            _script_call("read", manifest, seed, task.template),
            manifest.answer,
            backend,
            make_login_steps(manifest, origin, {"seed": str(seed), "variant": task.template}),
            files=manifest.file_folder,
        )

    def _backend(self, manifest: PageManifest, variant: str, seed: int) -> PageServer | None:
        if manifest.server is None:
            return None
        self._backends = [one for one in self._backends if not one.over]
        backend = PageServer(manifest, variant, seed, self._programs[manifest.name])
        self._backends.append(backend)
        return backend


def _add_seed_parameter(address: str, manifest: PageManifest, seed: int) -> str:
    """Return the address, with the seed parameter where the page takes its seed from its address."""
    if not isinstance(manifest.reset, SeedParameter):
        return address
    parts = urlsplit(address)
    query = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != manifest.reset.parameter]
    return parts._replace(query=urlencode([*query, (manifest.reset.parameter, str(seed))])).geturl()
