// Requests that no script can be seen to make: they take no page time either. And what a page uses that may differ from
// one run to the next.

// `import()` is syntax, and a style sheet asks for pictures and fonts by itself. So each document comes with a policy
// that allows nothing and forbids nothing (`page.py`): the browser reports every request as it begins. It has ended
// when the browser has its timing. An address is waited for once.
const known = new Set(), awaitedHere = plain(null);
const knows = uncurried(Set.prototype.has), learn = uncurried(Set.prototype.add);
const policyOf = property(SecurityPolicyViolationEvent.prototype, "originalPolicy");
const blocked = property(SecurityPolicyViolationEvent.prototype, "blockedURI");
const dispositionOf = property(SecurityPolicyViolationEvent.prototype, "disposition");
const nameOf = property(PerformanceEntry.prototype, "name");
const halt = uncurried(Event.prototype.stopImmediatePropagation);
const indexOf = uncurried(String.prototype.indexOf), Address = URL, hrefOf = property(URL.prototype, "href");
const bare = (address) => { const at = indexOf(address, "#"); return at < 0 ? address : slice(address, 0, at); };
const arrived = (address) => {
  const over = awaitedHere[address];
  delete awaitedHere[address];
  learn(known, address);
  if (over) over();
};
const onReport = (event) => {
  const own = policyOf(event) === config.policy, address = bare(blocked(event));
  if (own) halt(event);
  if (dispositionOf(event) === "enforce") arrived(address); // the page's own policy forbids it
  else if (own && !knows(known, address) && slice(address, 0, 4) === "http") {
    learn(known, address);
    awaitedHere[address] = begun();
  }
};
new PerformanceObserver((list) => {
  const entries = list.getEntries();
  for (let i = 0; i < entries.length; i++) arrived(bare(nameOf(entries[i])));
}).observe({ type: "resource", buffered: true });
// What a page uses that may differ from time to time all the same: named where two screens are found unlike.
const used = plain(null), uses = (what) => { used[what] = true; };
/** An address that is waited for otherwise, or not at all: a stream has no end. */
const already = (address) => {
  try {
    learn(known, bare(hrefOf(new Address(text(address), document.baseURI))));
  } catch { /* no address: the page will hear of it */ }
};
const beforehand = (object, name, before) => {
  const method = object?.[name];
  if (method) replace(object, name, { [name](...args) { before(args); return apply(method, this, args); } }[name]);
};
beforehand(window, "fetch", ([what]) => {
  already(what instanceof Request ? what.url : what);
  if (pending()) uses("requests at once, whose answers come in any order");
});
beforehand(XMLHttpRequest.prototype, "open", ([, address]) => already(address));
beforehand(Navigator.prototype, "sendBeacon", ([address]) => already(address));
const constructed = (name, before) => {
  const kind = window[name];
  const made = (target, args, self) => (before(args), construct(target, args, self));
  if (kind) window[name] = new Proxy(kind, { construct: made });
};
constructed("EventSource", ([address]) => already(address));
for (const [name, what] of [
  ["WebSocket", "WebSocket, whose messages come when they will"], ["RTCPeerConnection", "WebRTC"],
  ["EventSource", "EventSource, whose messages come when they will"],
  ["AudioContext", "AudioContext, whose time is real"],
  ["VideoDecoder", "VideoDecoder"], ["AudioDecoder", "AudioDecoder"],
]) constructed(name, () => uses(what));
beforehand(window.LockManager?.prototype, "request", () => uses("navigator.locks"));
const subtle = window.SubtleCrypto?.prototype;
beforehand(subtle, "generateKey", () => uses("crypto.subtle.generateKey, whose keys are new"));
beforehand(window.HTMLVideoElement?.prototype, "requestVideoFrameCallback", () => uses("requestVideoFrameCallback"));
beforehand(HTMLCanvasElement.prototype, "transferControlToOffscreen", () => uses("OffscreenCanvas of a worker"));
const features = () => {
  const media = find(document, "video, audio");
  if (media.length) uses("video or audio, which play in real time");
  const list = [];
  for (const what in used) push(list, what);
  return list;
};
