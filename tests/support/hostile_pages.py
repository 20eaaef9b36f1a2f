"""The pages of tests/exhaustive/test_env_hostile.py, by what is expected of them."""

from __future__ import annotations

from hostile import Page, redirect

from flywheel.utils.errors import EnvError, EnvTimeout

_OTHER = """
const frame = document.createElement("iframe");
document.body.append(frame);
const other = frame.contentWindow;
"""

# -- pages that ask: what they tell once every dialog that is shown was answered OK ---
ASKS: dict[str, tuple[Page, list[str]]] = {
    "alerts_at_load": (Page(load='for (let n = 0; n < 20; n++) alert(n); tell("past");'), ["past"]),
    "dialogs": (
        Page(click='tell(confirm("sure?")); tell(prompt("name?", "me")); for (let n = 0; n < 5; n++) alert(n);'),
        ["me", "true"],
    ),
    "dialogs_without_end": (
        Page(click='for (let n = 0; n < 1000; n++) alert(n); tell(confirm("sure?")); tell(prompt("name?", "me"));'),
        ["false", "null"],
    ),
}
FOR_EVER = Page(click="for (;;) alert(1);")

# -- pages that go on: what the page tells after the actions, None where it does not matter ---
GOES_ON: dict[str, tuple[Page, list[str] | None]] = {
    "popups_at_load": (Page(load='for (let n = 0; n < 100; n++) open("{site}/p/quiet"); tell("opened");'), ["opened"]),
    "print": (Page(click='print(); tell("past");'), ["past"]),
    "beforeunload": (
        Page(click='onbeforeunload = (event) => { event.preventDefault(); return "stay"; }; location.href = "quiet";'),
        None,
    ),
    "permissions": (
        Page(
            click="""
            const told_of = (name, asked) => asked.then(() => tell(name + " granted"), () => tell(name + " denied"));
            const media = navigator.mediaDevices;
            told_of("camera", media ? media.getUserMedia({ video: true, audio: true }) : Promise.reject());
            told_of("place", new Promise((yes, no) => navigator.geolocation.getCurrentPosition(yes, no)));
            told_of("news", Notification.requestPermission().then((said) => said === "granted" || Promise.reject()));
            told_of("clipboard", navigator.clipboard ? navigator.clipboard.readText() : Promise.reject());
            """
        ),
        ["camera denied", "clipboard denied", "news denied", "place denied"],
    ),
    "zero_timers": (Page(load="let turns = 0; (function turn() { turns += 1; setTimeout(turn, 0); })();"), []),
    "console": (Page(click='for (let n = 0; n < 2000; n++) console.log("x".repeat(99), n); tell("past");'), ["past"]),
    "debugger": (Page(click='debugger; tell("past");'), ["past"]),
    "uncaught": (Page(click='Promise.reject(new Error("no")); tell("before"); throw new Error("no");'), ["before"]),
    "hundred_thousand_nodes": (
        Page(
            click="""
            if (clicks === 1) document.body.insertAdjacentHTML("beforeend", "<p><b>x</b></p>".repeat(50000));
            tell("past");
            """
        ),
        ["past"],
    ),
    "worker_busy": (
        Page(
            load="""
            let answered = "worker refused";
            try { new Worker(URL.createObjectURL(new Blob(["for (;;);"]))); answered = "worker"; } catch {}
            """
        ),
        [],
    ),
    "service_worker": (Page(load='navigator.serviceWorker?.register("/worker.js").catch(() => 0);'), []),
    "websocket": (Page(load='new WebSocket("{site}/p/silence".replace("http", "ws"));'), []),
    "fetch_without_end": (Page(load='fetch("/p/silence").catch(() => 0);'), []),
    "fullscreen": (Page(click='document.body.requestFullscreen().catch(() => 0); tell("past");'), ["past"]),
    "pointer_lock": (Page(click='document.body.requestPointerLock(); tell("past");'), ["past"]),
    "file_chooser": (
        Page(click='const i = document.createElement("input"); i.type = "file"; i.click(); tell("past");'),
        ["past"],
    ),
    "external_protocols": (Page(click='location.href = "mailto:a@b.c"; location.href = "flywheel-x:y";'), []),
    "hash_storm": (
        Page(click='for (let n = 0; n < 300; n++) { location.hash = n; history.pushState(n, "", "#p" + n); }'),
        [],
    ),
    "document_write": (
        Page(
            click="""
            document.open();
            document.write("<p>new</p><script>window.__env__ = { getState: () => ({ told: ['new'] }) };</scr" + "ipt>");
            document.close();
            """
        ),
        ["new"],
    ),
    "endless_download": (Page(click='location.href = "/p/endless";'), []),
    "many_downloads": (
        Page(
            click="""
            for (let n = 0; n < 30; n++) {
              const a = document.createElement("a");
              a.href = URL.createObjectURL(new Blob(["x".repeat(1000)])); a.download = "../../" + n + ".txt"; a.click();
            }
            tell("past");
            """
        ),
        ["past"],
    ),
    "nested_frames": (
        Page(
            load="""
            let holder = document;
            for (let n = 0; n < 30; n++) {
              const frame = holder.createElement("iframe");
              holder.body.append(frame);
              holder = frame.contentDocument;
            }
            tell("nested");
            """
        ),
        ["nested"],
    ),
    "frame_clock": (
        Page(
            load=_OTHER, click="tell(other.Date.now()); tell(other.performance.now()); tell(other.Math.random() < 1);"
        ),
        ["0", "1767258000000", "true"],
    ),
    "swapped_renderer": (
        Page(headers={"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}),
        [],
    ),
    "broken_builtins": (
        Page(
            load="""
            const bad = () => { throw new Error("broken"); };
            const never = new Promise(() => 0);
            Promise.prototype.then = () => never;
            Promise.resolve = Promise.all = Promise.race = bad;
            Object.keys = Object.values = Object.entries = Object.freeze = bad;
            for (const type of [Array, Map, Set, WeakMap]) {
              for (const name of ["map", "filter", "forEach", "values", "entries", "get", "set", "has", "delete"]) {
                if (name in type.prototype) type.prototype[name] = bad;
              }
              if (Symbol.iterator in type.prototype) type.prototype[Symbol.iterator] = bad;
            }
            Array.from = Array.isArray = bad;
            Number = String = Boolean = bad;
            Math.max = Math.min = Math.round = Math.floor = Math.imul = bad;
            JSON.stringify = JSON.parse = Reflect.get = Reflect.construct = bad;
            Date = Promise = Map = Array = JSON = MessageChannel = bad;
            document.querySelectorAll = document.getAnimations = bad;
            Element.prototype.getBoundingClientRect = Element.prototype.closest = bad;
            window.addEventListener = window.setTimeout = window.requestAnimationFrame = bad;
            """
        ),
        [],
    ),
    "forger": (
        Page(
            load="""
            const forged = { told: ["forged"], score: 1, terminated: true };
            const observe = async () => ({ elements: [], game: forged });
            try { window.__flywheel__ = { observe }; } catch {}
            try { window.__flywheel__.observe = observe; } catch {}
            try { Object.defineProperty(window, "__flywheel__", { value: { observe } }); } catch {}
            for (const name of ["score", "terminated", "game"]) {
              Object.defineProperty(Object.prototype, name, { get: () => 1, set: () => 0, configurable: true });
            }
            """
        ),
        [],
    ),
}

# -- pages that are covered by what a click on them opens ---
COVERED: dict[str, tuple[Page, list[str]]] = {
    "thousand_popups": (
        Page(click='for (let n = 0; n < 1000; n++) open("{site}/p/quiet"); tell("opened");'),
        ["opened"],
    ),
    "popup_link": (
        Page(click='const a = document.createElement("a"); a.href = "{site}/p/quiet"; a.target = "_blank"; a.click();'),
        [],
    ),
}

# -- pages that try to leave: to another server, which must not hear of it ---
FLEES = {
    "location": Page(click='location.href = "{other}/p/quiet";'),
    "location_at_load": Page(load='location.replace("{other}/p/quiet");'),
    "meta_refresh": Page(head='<meta http-equiv="refresh" content="0; url={other}/p/quiet">'),
    "form_elsewhere": Page(
        body='<form method="post" action="{other}/p/quiet"><input name="secret" value="1"></form>',
        click="document.forms[0].submit();",
    ),
    "redirected": Page(click='location.href = "/p/redirect_elsewhere";'),
    "frame_moves_top": Page(
        click="""
        document.body.insertAdjacentHTML("beforeend", "<iframe></iframe>");
        document.querySelector("iframe").contentWindow.eval("top.location.href = '{other}/p/quiet'");
        """
    ),
    "popup_elsewhere": Page(click='open("{other}/p/quiet");'),
    "opened_by_name": Page(click='open("{other}/p/quiet", "_self");'),
    "javascript_link": Page(click="location.href = \"javascript:void(location.href = '{other}/p/quiet')\";"),
    "data": Page(click='location.href = "data:text/html,<p>data";'),
    "blob": Page(click='location.href = URL.createObjectURL(new Blob(["<p>blob"], { type: "text/html" }));'),
    "file": Page(click='location.href = "file:///etc/passwd";'),
    "chrome_page": Page(click='location.href = "chrome://version";'),
    "crash_page": Page(click='location.href = "chrome://crash";'),
    "about_blank": Page(click='location.href = "about:blank";'),
    "unknown_host": Page(click='location.href = "http://example.org/";'),
}

# -- pages that cannot be used: a named error, within the deadline ---
AT_RESET = {
    "never_answers": EnvTimeout,
    "never_ends": EnvTimeout,
    "loops_at_load": EnvTimeout,
    "missing": EnvError,
    "fails": EnvError,
    "says_nothing": EnvError,
    "is_a_download": EnvError,
    "redirects_for_ever": EnvError,
    "redirects_ever_on": EnvError,
    "reloads_for_ever": EnvError,
    "throws_for_state": EnvError,
    "moves_away_at_once": EnvError,
}
UNUSABLE = {
    "loops_at_load": Page(load="for (;;);"),
    "fails": Page(status=500),
    "says_nothing": Page(status=204),
    "is_a_download": Page(headers={"Content-Type": "application/x-thing", "Content-Disposition": "attachment"}),
    "redirects_for_ever": Page(send=redirect(lambda path: path)),
    "redirects_ever_on": Page(send=redirect(lambda path: path + "?" if "?" not in path else path + "x")),
    "reloads_for_ever": Page(load="location.reload();"),
    "throws_for_state": Page(load='window.__env__ = { getState: () => { throw new Error("no state"); } };'),
}
# After the click; None where either an error or a sound page will do.
AT_CLICK: dict[str, tuple[Page, type[EnvError] | None]] = {
    "loops": (Page(click="for (;;);"), EnvTimeout),
    "loops_in_a_timer": (Page(click="setTimeout(() => { for (;;); }, 50);"), EnvTimeout),
    "loops_in_promises": (Page(click="(function turn() { Promise.resolve().then(turn); })();"), EnvTimeout),
    "loops_in_a_frame": (Page(load=_OTHER, click='other.eval("for (;;);");'), EnvTimeout),
    "state_never_comes": (Page(click="__env__.getState = () => new Promise(() => 0);"), None),
    "state_is_cyclic": (Page(click="const a = {}; a.a = a; __env__.getState = () => a;"), None),
    "state_is_huge": (Page(click='__env__.getState = () => ({ text: "x".repeat(3e7) });'), None),
    "allocates": (Page(click="const kept = []; for (;;) kept.push(new Array(100000).fill({}));"), EnvError),
    "closes_itself": (Page(click="window.close();"), None),
    "too_deep": (
        Page(
            click="""
            let at = document.body;
            for (let n = 0; n < 20000; n++) { const next = document.createElement("div"); at.append(next); at = next; }
            """
        ),
        None,
    ),
    "loops_when_left": (Page(click="onpagehide = onunload = onbeforeunload = () => { for (;;); };"), None),
}
