  // -- what else page time waits for ------------------------------------------------------------------------------
  // Part of clock.js, which holds it where it says so: requests that no script can be seen to make, and answers of the
  // browser's other threads. All of it takes no page time, as the requests above.

  // `import()` is syntax, and a style sheet asks for pictures and fonts by itself. So each document comes with a policy
  // that allows nothing and forbids nothing (`loads.py`): the browser reports every request as it begins. It has ended
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

  // Decoding, hashing, compiling, reading: done on other threads, in real time.
  const elsewhere = [
    [HTMLImageElement.prototype, "decode"], [window.FontFace?.prototype, "load"],
    [window.FontFaceSet?.prototype, "load"], [WebAssembly, "compileStreaming instantiateStreaming"],
    [window.CacheStorage?.prototype, "open match has delete keys"],
    [window.Cache?.prototype, "match matchAll add addAll put delete keys"],
    [window.StorageManager?.prototype, "getDirectory estimate persisted"], [window.Permissions?.prototype, "query"],
    [window.IDBFactory?.prototype, "databases"], [window.ImageDecoder?.prototype, "decode"],
  ];
  const words = uncurried(String.prototype.split);
  for (const [object, names] of elsewhere)
    for (const name of object ? words(names, " ") : []) if (object[name]) trackMethod(object, name);
  // Those that wait for nothing else answer in the order in which they were asked.
  const computed = [
    [window, "createImageBitmap"], [Blob.prototype, "text arrayBuffer bytes"],
    [window.OffscreenCanvas?.prototype, "convertToBlob"], [WebAssembly, "compile instantiate"],
    [subtle, "digest sign verify encrypt decrypt generateKey importKey exportKey"],
    [subtle, "deriveBits deriveKey wrapKey unwrapKey"],
    [window.BaseAudioContext?.prototype, "decodeAudioData"], [window.OfflineAudioContext?.prototype, "startRendering"],
  ];
  let last = P.resolve();
  const inTurn = (promise) => {
    const before = last, over = begun();
    const answer = new P((resolve, reject) => {
      then(promise, (value) => then(before, () => resolve(value)), (error) => then(before, () => reject(error)));
    });
    last = then(answer, over, over);
    return answer;
  };
  for (const [object, names] of computed)
    for (const name of object ? words(names, " ") : []) {
      const method = object[name];
      if (method) replace(object, name, { [name](...args) { return inTurn(apply(method, this, args)); } }[name]);
    }
  const untilEvents = (object, names, events, target = (made) => made) => {
    for (const name of object ? words(names, " ") : []) {
      const method = object[name];
      replace(object, name, { [name](...args) {
        const made = apply(method, this, args), over = begun();
        for (const event of events) listen(target(made, this), event, over, { once: true });
        return made;
      } }[name]);
    }
  };
  const asks = ["success", "error", "blocked"];
  untilEvents(window.IDBFactory?.prototype, "open deleteDatabase", asks);
  const reads = "get getKey getAll getAllKeys count openCursor openKeyCursor";
  untilEvents(window.IDBObjectStore?.prototype, `${reads} add put delete clear`, asks);
  untilEvents(window.IDBIndex?.prototype, reads, asks);
  untilEvents(window.IDBCursor?.prototype, "update delete", asks);
  untilEvents(window.IDBCursor?.prototype, "continue advance continuePrimaryKey", asks, (_, cursor) => cursor.request);
  untilEvents(window.IDBDatabase?.prototype, "transaction", ["complete", "abort", "error"]);
  untilEvents(FileReader.prototype, "readAsText readAsDataURL readAsArrayBuffer readAsBinaryString", ["loadend"],
    (_, reader) => reader);
  const toBlob = HTMLCanvasElement.prototype.toBlob;
  replace(HTMLCanvasElement.prototype, "toBlob", { toBlob(callback, ...rest) {
    const made = new P((resolve) => apply(toBlob, this, [resolve, ...rest]));
    then(inTurn(made), (blob) => run(callback, [blob]));
  } }.toBlob);

  // A task that is to wait does so in page time; a change of views is shown at its end, not on its way.
  if (postTask) {
    const promptly = Scheduler.prototype.postTask;
    replace(Scheduler.prototype, "postTask", { postTask(task, options) {
      const wait = number(options?.delay) || 0;
      if (!(wait > 0)) return apply(promptly, this, [task, options]);
      return new P((resolve, reject) => {
        addTimer(() => then(apply(promptly, this, [task, { ...options, delay: 0 }]), resolve, reject), wait, false, []);
      });
    } }.postTask);
  }
  const transition = Document.prototype.startViewTransition;
  if (transition)
    replace(Document.prototype, "startViewTransition", { startViewTransition(...args) {
      const made = apply(transition, this, args);
      made.skipTransition();
      then(made.ready, undefined, () => {}); // it says that it was skipped
      track(made.updateCallbackDone);
      return made;
    } }.startViewTransition);

  // Workers have the page's time (`worker_clock.js`): each is told it when it begins, when it is sent something and
  // when its next timer is due, and the page's clock waits until it has nothing left to do then.
  const tell = Worker.prototype.postMessage, end = Worker.prototype.terminate, workers = new WeakMap();
  const dataOf = property(MessageEvent.prototype, "data");
  const ask = (worker) => {
    const own = seen(workers, worker);
    if (!own?.there) return;
    const asked = own.asked++;
    own.waits[asked] = begun();
    apply(tell, worker, [{ __flywheel__: { number: asked, time: core.start + core.now } }]);
  };
  const rest = (own) => { // nothing more is waited for
    own.there = false;
    own.begun();
    for (const asked in own.waits) own.waits[asked]();
    delete core.timers[own.timer];
  };
  const hear = (worker, own, event) => {
    const said = dataOf(event)?.__flywheel__;
    if (!said) return;
    halt(event);
    if (said.hello) {
      own.there = true;
      ask(worker);
      return own.begun();
    }
    if (said.closed) return rest(own);
    own.waits[said.number]?.();
    delete own.waits[said.number];
    delete core.timers[own.timer];
    if (typeof said.due !== "number" || !(said.due >= core.start) || !own.there) return; // NaN: a script said this
    own.timer = core.nextId++;
    const at = max(said.due - core.start, core.now);
    core.timers[own.timer] = { at, every: 0, depth: 0, realm: window, run: () => ask(worker) };
  };
  const RealWorker = window.Worker;
  window.Worker = new Proxy(RealWorker, { construct(target, args, self) {
    const worker = construct(target, args, self);
    const own = { there: false, begun: begun(), asked: 0, waits: plain(null), timer: 0 };
    remember(workers, worker, own);
    listen(worker, "message", (event) => hear(worker, own, event));
    listen(worker, "error", () => own.begun());
    return worker;
  } });
  replace(RealWorker.prototype, "postMessage", { postMessage(...args) {
    const given = args[1]?.transfer ?? args[1];
    for (let i = 0; i < (given?.length ?? 0); i++)
      if (given[i] instanceof MessagePort) uses("a MessagePort to a worker, whose answers come when they will");
    const at = { time: core.start + core.now };
    if (seen(workers, this)?.there) apply(tell, this, [{ __flywheel__: at }]);
    apply(tell, this, args);
    ask(this);
  } }.postMessage);
  replace(RealWorker.prototype, "terminate", { terminate() {
    apply(end, this, []);
    const own = seen(workers, this);
    if (own) rest(own);
  } }.terminate);
