"""The ways there are for a page to reach a server: what a hostile page tries. No benchmark itself.

Each is HTML that stands in a page's body. In it `{at}` is host and port of the server that is aimed at, `{name}` the
way's name, `{here}` the page's own host and port. A server knows a hit by its path, `/hit/NAME`, or where there is no
path (a connection without a request, a datagram) by its port.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """alone: it leads the page away, so it has a page for itself. own: the page's own server can be reached like
    this too. rare: not in every build (a headless one asks for no icon), so it is not waited for."""

    name: str
    html: str
    alone: bool = False
    own: bool = True
    rare: bool = False

    def page(self, at: str, here: str) -> str:
        return self.html.replace("{at}", at).replace("{name}", self.name).replace("{here}", here)


_URL = "http://{at}/hit/{name}"
_BUTTON = "position:fixed;inset:0;width:100%;height:100%;display:block"  # pressed wherever one clicks


def _script(text: str) -> str:
    return f"<script>(() => {{ const url = '{_URL}', at = '{{at}}'; {text} }})();</script>"


def _worker(text: str, kind: str = "classic") -> str:
    """text: of a worker, in which `url` and `at` are known."""
    return _script(
        f"const text = `const url = '{_URL}', at = '{{at}}'; {text}`;"
        f"window.workers = [...(window.workers ?? []), new Worker(URL.createObjectURL(new Blob([text], "
        f"{{type: 'text/javascript'}})), {{type: '{kind}'}})];"
    )


def _framed(text: str, attributes: str = "") -> str:
    inside = f"<script>const url = '{_URL}'; {text}</script>".replace("&", "&amp;").replace('"', "&quot;")
    return f'<iframe {attributes} srcdoc="{inside}"></iframe>'


def _rtc(servers: str) -> str:
    return _script(
        f"const peer = new RTCPeerConnection({{iceServers: [{servers}]}}); peer.createDataChannel('x');"
        "peer.createOffer().then((offer) => peer.setLocalDescription(offer));"
        "window.peers = [...(window.peers ?? []), peer];"
    )


def _candidate(kind: str) -> str:
    """Two peers of one page; one is told that the other is at the server's port."""
    return _script(
        "const a = new RTCPeerConnection(), b = new RTCPeerConnection(); a.createDataChannel('x');"
        "window.peers = [...(window.peers ?? []), a, b];"
        "(async () => { await a.setLocalDescription(await a.createOffer());"
        "await b.setRemoteDescription(a.localDescription); await b.setLocalDescription(await b.createAnswer());"
        "await a.setRemoteDescription(b.localDescription);"
        "const [host, port] = at.split(':');"
        f"await a.addIceCandidate({{candidate: `candidate:1 1 {kind}`.replace('HOST', host).replace('PORT', port), "
        "sdpMid: '0'}); })();"
    )


def _rules(kind: str) -> str:
    rule = json.dumps({kind: [{"source": "list", "urls": [_URL], "eagerness": "immediate"}]})
    return f"<script type=speculationrules>{rule}</script>"


_TALKS = "const socket = new WebSocket('ws://' + at + '/hit/{name}'); self.kept = socket;"
_ELSEWHERE = {  # names of this machine
    "dotted_short": "127.1",
    "decimal": "2130706433",
    "hexadecimal": "0x7f000001",
    "octal": "0177.0.0.1",
    "localhost": "localhost",
    "under_localhost": "page.localhost",
    "zero": "0.0.0.0",
    "mapped": "[::ffff:127.0.0.1]",
    "ipv6": "[::1]",
}
_SAME = ("dotted_short", "decimal", "hexadecimal", "octal")  # a browser writes these as 127.0.0.1

WAYS = (
    # -- requests of scripts
    Way("fetch", _script("fetch(url);")),
    Way("fetch_post", _script("fetch(url, {method: 'POST', mode: 'no-cors', body: 'x'});")),
    Way("fetch_delete", _script("fetch(url, {method: 'DELETE'});")),
    Way("fetch_keepalive", _script("fetch(url, {keepalive: true, mode: 'no-cors'});")),
    Way("fetch_later", _script("fetchLater(url, {activateAfter: 0});")),
    Way("xhr", _script("const asked = new XMLHttpRequest(); asked.open('GET', url); asked.send();")),
    Way("xhr_sync", _script("const asked = new XMLHttpRequest(); asked.open('GET', url, false); asked.send();")),
    Way("beacon", _script("navigator.sendBeacon(url, 'x');")),
    Way("event_source", _script("window.source = new EventSource(url);")),
    Way("websocket", _script(_TALKS.replace("self", "window"))),
    Way("websocket_tls", _script("window.tls = new WebSocket('wss://' + at + '/');"), own=False),
    Way("fetch_tls", _script("fetch('https://' + at + '/', {mode: 'no-cors'});"), own=False),
    Way("cache_add", _script("caches.open('x').then((cache) => cache.add(url));")),
    Way("import", _script("import(url + '/x.js');")),
    Way("font_face", _script("new FontFace('x', `url(${url})`).load();")),
    Way("audio_object", _script("window.sound = new Audio(url); sound.load();")),
    Way("image_object", _script("window.picture = new Image(); picture.src = url;")),
    Way("paint_worklet", _script("CSS.paintWorklet.addModule(url + '/x.js');")),
    Way("audio_worklet", _script("new OfflineAudioContext(1, 1, 8000).audioWorklet.addModule(url + '/x.js');")),
    # -- elements
    Way("img", f"<img src='{_URL}'>"),
    Way("img_srcset", f"<img srcset='{_URL} 1x'>"),
    Way("script", f"<script src='{_URL}/x.js'></script>"),
    Way("script_module", f"<script type=module src='{_URL}/x.js'></script>"),
    Way("stylesheet", f"<link rel=stylesheet href='{_URL}/x.css'>"),
    Way("css_import", f"<style>@import url('{_URL}/x.css');</style>"),
    Way("css_background", f"<div style=\"width:9px;height:9px;background:url('{_URL}')\"></div>"),
    Way(
        "css_font", f"<style>@font-face {{ font-family: far; src: url('{_URL}') }}</style><p style='font:9px far'>x</p>"
    ),
    Way("css_list", f"<ul style=\"list-style-image:url('{_URL}')\"><li>x</ul>"),
    Way("input_image", f"<input type=image src='{_URL}'>"),
    Way("video", f"<video src='{_URL}' preload=auto></video>"),
    Way("video_poster", f"<video poster='{_URL}'></video>"),
    Way("audio", f"<audio src='{_URL}' preload=auto></audio>"),
    Way("track", f"<video src='/silence' crossorigin><track default src='{_URL}' kind=captions></video>"),
    Way("svg_image", f"<svg width=9 height=9><image href='{_URL}' width=9 height=9 /></svg>"),
    Way("object", f"<object data='{_URL}' type='image/png' width=9 height=9></object>"),
    Way("object_page", f"<object data='{_URL}/x.html' width=9 height=9></object>"),
    Way("embed", f"<embed src='{_URL}/x.html' width=9 height=9>"),
    Way("iframe", f"<iframe src='{_URL}/x.html'></iframe>"),
    Way("frame_fetch", _framed("fetch(url)")),
    Way("frame_sandboxed", _framed("fetch(url, {mode: 'no-cors'})", "sandbox=allow-scripts")),
    Way("frame_data", f"<iframe src=\"data:text/html,<script>fetch('{_URL}',{{mode:'no-cors'}})</script>\"></iframe>"),
    Way(
        "frame_form",
        f"<iframe name=f_{{name}}></iframe><form method=post action='{_URL}' target=f_{{name}}></form>"
        "<script>document.forms[document.forms.length - 1].submit();</script>",
    ),
    Way("frame_refresh", _framed("document.write(`<meta http-equiv=refresh content='0;url=${url}'>`)")),
    # -- hints
    Way("prefetch", f"<link rel=prefetch href='{_URL}'>"),
    Way("preload", f"<link rel=preload as=image href='{_URL}'>"),
    Way("module_preload", f"<link rel=modulepreload href='{_URL}/x.js'>"),
    Way("preconnect", "<link rel=preconnect href='http://{at}'>", own=False, rare=True),
    Way("rules_prefetch", _rules("prefetch")),
    Way("rules_prerender", _rules("prerender")),
    Way("icon", f"<link rel=icon href='{_URL}/x.png'>", rare=True),
    Way("web_manifest", f"<link rel=manifest href='{_URL}'>", rare=True),
    # -- workers
    Way("worker_fetch", _worker("fetch(url);")),
    Way("worker_xhr", _worker("const asked = new XMLHttpRequest(); asked.open('GET', url); asked.send();")),
    Way("worker_websocket", _worker(_TALKS)),
    Way("worker_scripts", _worker("importScripts(url + '/x.js');")),
    Way("worker_import", _worker("import(url + '/x.js');", "module")),
    Way(
        "worker_in_worker",
        _worker(
            "self.inner = new Worker(URL.createObjectURL(new Blob([`fetch('` + url + `')`"
            ".replaceAll('\\\\u0060', '')])));".replace("`", "\\`")
        ),
    ),
    # -- answers that lead on
    Way("redirect_fetch", "<script>fetch('http://{here}/to/http://{at}/hit/{name}', {mode: 'no-cors'});</script>"),
    Way("redirect_img", "<img src='http://{here}/to/http://{at}/hit/{name}'>"),
    Way("redirect_frame", "<iframe src='http://{here}/to/http://{at}/hit/{name}/x.html'></iframe>"),
    Way("policy_report", "<iframe src='http://{here}/reports/http://{at}/hit/{name}'></iframe>"),
    Way("link_header", "<iframe src='http://{here}/links/http://{at}/hit/{name}'></iframe>"),
    # -- past HTTP
    Way("stun", _rtc("{urls: 'stun:{at}'}"), own=False),
    Way("turn", _rtc("{urls: 'turn:{at}', username: 'x', credential: 'x'}"), own=False),
    Way("turn_tcp", _rtc("{urls: 'turn:{at}?transport=tcp', username: 'x', credential: 'x'}"), own=False),
    Way("turn_tls", _rtc("{urls: 'turns:{at}?transport=tcp', username: 'x', credential: 'x'}"), own=False),
    Way("candidate_udp", _candidate("udp 2122260223 HOST PORT typ host"), own=False),
    Way("candidate_tcp", _candidate("tcp 1518280447 HOST PORT typ host tcptype passive"), own=False),
    Way("web_transport", _script("window.far = new WebTransport('https://' + at + '/');"), own=False),
    # -- navigation
    Way("link", f"<a href='{_URL}' style='{_BUTTON}'>go</a>", alone=True),
    Way("link_ping", f"<a href='#here' ping='{_URL}' style='{_BUTTON}'>go</a>", alone=True),
    Way("link_blank", f"<a href='{_URL}' target=_blank style='{_BUTTON}'>go</a>", alone=True),
    Way("link_download", f"<a href='{_URL}' download=x style='{_BUTTON}'>go</a>", alone=True),
    Way("window_open", f"<button style='{_BUTTON}' onclick=\"window.open('{_URL}')\">go</button>", alone=True),
    Way("form_get", f"<form action='{_URL}'><button style='{_BUTTON}'>go</button></form>", alone=True),
    Way("form_post", f"<form method=post action='{_URL}'><button style='{_BUTTON}'>go</button></form>", alone=True),
    Way("location", f"<button style='{_BUTTON}' onclick=\"location = '{_URL}'\">go</button>", alone=True),
    Way("refresh", f"<meta http-equiv=refresh content='0;url={_URL}'>", alone=True),
    Way("redirect_link", f"<a href='http://{{here}}/to/{_URL}' style='{_BUTTON}'>go</a>", alone=True),
    Way(
        "payment",
        f"<button style='{_BUTTON}' onclick=\"new PaymentRequest([{{supportedMethods: 'https://{{at}}/'}}], "
        "{total: {label: 'x', amount: {currency: 'EUR', value: '1'}}}).show()\">go</button>",
        alone=True,
        own=False,
        rare=True,
    ),
    # -- other names of this machine
    *(
        Way(
            f"as_{name}",
            f"<script>fetch('http://{host}:' + '{{at}}'.split(':')[1] + '/hit/{{name}}', "
            "{mode: 'no-cors'});</script>",
            own=name in _SAME,
        )
        for name, host in _ELSEWHERE.items()
    ),
)
