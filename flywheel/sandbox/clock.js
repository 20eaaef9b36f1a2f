// Runs in every document before its own scripts: time that stands still until it is advanced, seeded chance, bounds
// to dialogs, and what an observer needs to know. `CONFIG` is replaced for each page: { seed, start, patience,
// policy }.
//
// Frames of one origin share the clock of their parent; frames of other origins have their own, advanced by message.
// A page may replace any built-in function afterwards, so all that is needed later is taken at the start.
(() => {
  "use strict";
  // The first document of a frame, which is empty, leaves its window to the next one.
  if (window.__flywheel__) return window.__flywheel__.settleIn();
  const config = CONFIG;
  const uncurried = (method) => Function.prototype.call.bind(method);
  const property = (object, name) => uncurried(Object.getOwnPropertyDescriptor(object, name).get);
  const P = Promise, RealDate = Date, Channel = MessageChannel, E = Element, apply = Reflect.apply, plain = Object.create;
  const { construct, get: read } = Reflect, { min, max, round, floor, imul } = Math, { parse, stringify } = JSON;
  const define = Object.defineProperty, same = Object.is, text = String, number = Number, indirect = eval;
  const then = uncurried(P.prototype.then);
  const realTimeout = window.setTimeout.bind(window), realClear = window.clearTimeout.bind(window);
  const sinceLoad = performance.now.bind(performance);
  const realNow = () => sinceLoad() - core.away;
  const style = window.getComputedStyle.bind(window), report = window.reportError.bind(window);
  const listen = uncurried(EventTarget.prototype.addEventListener);
  const find = uncurried(Document.prototype.querySelectorAll), box = uncurried(E.prototype.getBoundingClientRect);
  const attribute = uncurried(E.prototype.getAttribute), matches = uncurried(E.prototype.matches);
  const closest = uncurried(E.prototype.closest), slice = uncurried(String.prototype.slice);
  const animationsOf = uncurried(Document.prototype.getAnimations);
  const animationsIn = uncurried(ShadowRoot.prototype.getAnimations);
  const findIn = uncurried(ShadowRoot.prototype.querySelectorAll), treeOf = property(E.prototype, "shadowRoot");
  const windowOf = property(HTMLIFrameElement.prototype, "contentWindow");
  const post = uncurried(MessagePort.prototype.postMessage), closePort = uncurried(MessagePort.prototype.close);
  const frameSend = window.postMessage;
  const seen = uncurried(WeakMap.prototype.get), remember = uncurried(WeakMap.prototype.set);
  const has = uncurried(WeakSet.prototype.has), mark = uncurried(WeakSet.prototype.add);
  const root = property(Document.prototype, "documentElement");
  const ready = property(Document.prototype, "readyState"), active = property(Document.prototype, "activeElement");
  const pathTo = uncurried(Event.prototype.composedPath);
  const prevented = property(Event.prototype, "defaultPrevented"), targetOf = property(Event.prototype, "target");
  const postTask = window.scheduler && uncurried(Scheduler.prototype.postTask);
  const theScheduler = window.scheduler;

  const EPOCH = RealDate.UTC(2026, 0, 1, 9);
  const FRAME = 1000 / 60;
  const NESTED = 5, CLAMP = 4; // timers set by timers, five deep, wait 4 ms at least, as in every browser
  const PATIENCE = 1500; // real milliseconds that a load may hold time up
  const CALM = 2; // looks in a row at which nothing is under way any more: what came in may ask for more
  const GESTURE = 5000; // page milliseconds in which a press of the user allows one popup
  const NOTES = 20; // of one look
  const DIALOGS = 10; // of one look; what asks further is not heard
  const HURRY = 1000, CROWD = 16; // page milliseconds still to pass, above which so many callbacks share a task

  // -- what is handed on -----------------------------------------------------------------------------------------
  // A document hands time and notes to the next one of its origin, in a store that it empties before any script looks.
  const CARRY = "__flywheel_carry__";
  const carried = () => {
    const fresh = { start: config.start, number: 0, notes: [], copied: null };
    try {
      const kept = parent === window ? sessionStorage.getItem(CARRY) : null;
      if (kept === null) return fresh;
      sessionStorage.removeItem(CARRY);
      return parse(kept);
    } catch {
      return fresh; // a document without storage
    }
  };
  const before = carried();
  const makeCore = () => ({
    start: before.start, now: 0, nextId: 1, nextFrame: FRAME, depth: 0, timers: plain(null), frames: plain(null),
    waiting: 0, realms: [], leaving: false, traversing: false, pending: plain(null), submits: [], moves: [],
    notes: before.notes, gesture: -Infinity, posted: false, unheard: false, drag: null, chooser: null,
    clipboard: before.copied ?? "", copied: before.copied,
    menus: [], saves: [], // what asks for a menu, and for a file to be kept
    key: null, // the last one that was pressed
    away: 0, dialogs: 0, quiet: 0, // real ms for which dialogs were open; how many; whether none may open
    drawn: 0, // numbers that the page took from its seeded chance
    trees: new WeakMap(), // host -> its shadow tree, closed ones too
  });
  let core = null;
  try {
    if (parent !== window) core = parent.__flywheel__.core;
  } catch { /* a frame of another origin, or a parent without a clock */ }
  core = core || makeCore();
  core.realms[core.realms.length] = window;
  /** The document of a frame; null where it is gone, or has gone to another origin. */
  const reached = (realm) => {
    try { return realm.closed ? null : realm.document; } catch { return null; }
  };
  const push = (list, value) => { list[list.length] = value; };
  const note = (kind, what) => {
    if (core.notes.length < NOTES) push(core.notes, [kind, slice(text(what), 0, 200)]);
  };
  const onHide = () => {
    try {
      if (parent !== window) return;
      const next = { start: core.start + core.now, number: before.number + 1, notes: core.notes, copied: core.copied };
      sessionStorage.setItem(CARRY, stringify(next));
    } catch { /* a document without storage */ }
  };

  // -- the clock ------------------------------------------------------------------------------------------------
  const born = core.now;
  const now = () => core.now - born;
  const run = (callback, args) => {
    try {
      if (typeof callback === "function") apply(callback, window, args);
      else indirect(text(callback));
    } catch (error) {
      report(error);
    }
  };
  const addTimer = (callback, delay, every, args) => {
    const depth = core.depth + 1;
    const least = depth > NESTED ? CLAMP : every ? 1 : 0;
    const wait = min(max(number(delay) || 0, least), 2 ** 31);
    const id = core.nextId++;
    core.timers[id] = {
      at: core.now + wait, every: every ? wait : 0, depth, realm: window, run: () => run(callback, args),
    };
    return id;
  };
  const replace = (object, name, value) =>
    define(object, name, { value, writable: true, configurable: true, enumerable: true });
  const getter = (object, name, get) => define(object, name, { get, configurable: true });

  replace(window, "setTimeout", function setTimeout(callback, delay, ...args) {
    return addTimer(callback, delay, false, args);
  });
  replace(window, "setInterval", function setInterval(callback, delay, ...args) {
    return addTimer(callback, delay, true, args);
  });
  replace(window, "requestIdleCallback", function requestIdleCallback(callback) {
    return addTimer(callback, 1, false, [{ didTimeout: false, timeRemaining: () => 10 }]);
  });
  const dropTimer = (id) => { delete core.timers[id]; };
  replace(window, "clearTimeout", function clearTimeout(id) { dropTimer(id); });
  replace(window, "clearInterval", function clearInterval(id) { dropTimer(id); });
  replace(window, "cancelIdleCallback", function cancelIdleCallback(id) { dropTimer(id); });
  replace(window, "requestAnimationFrame", function requestAnimationFrame(callback) {
    const id = core.nextId++;
    core.frames[id] = { realm: window, run: () => run(callback, [now()]) };
    core.waiting += 1;
    return id;
  });
  replace(window, "cancelAnimationFrame", function cancelAnimationFrame(id) {
    if (core.frames[id]) core.waiting -= 1;
    delete core.frames[id];
  });
  replace(AbortSignal, "timeout", function timeout(ms) {
    const control = new AbortController();
    addTimer(() => control.abort(new DOMException("signal timed out", "TimeoutError")), ms, false, []);
    return control.signal;
  });

  replace(Performance.prototype, "now", { now() { return now(); } }.now);
  getter(Performance.prototype, "timeOrigin", () => EPOCH + core.start + born);
  getter(AnimationTimeline.prototype, "currentTime", () => now());
  const stamps = new WeakMap();
  getter(Event.prototype, "timeStamp", function timeStamp() {
    if (seen(stamps, this) === undefined) remember(stamps, this, now());
    return seen(stamps, this);
  });
  const date = () => EPOCH + core.start + core.now;
  window.Date = new Proxy(RealDate, {
    construct: (target, args, self) => construct(target, args.length ? args : [date()], self),
    apply: () => new RealDate(date()).toString(),
    get: (target, key) => (key === "now" ? dateNow : read(target, key)),
  });
  const dateNow = () => floor(date());
  RealDate.prototype.constructor = window.Date;

  // -- chance ---------------------------------------------------------------------------------------------------
  const generator = (seed) => {
    const state = { value: seed >>> 0 };
    const next = () => {
      core.drawn += 1;
      state.value = (state.value + 0x6d2b79f5) >>> 0;
      let t = imul(state.value ^ (state.value >>> 15), state.value | 1);
      t = (t + imul(t ^ (t >>> 7), t | 61)) ^ t;
      return (t ^ (t >>> 14)) >>> 0;
    };
    return { state, next };
  };
  // Each document of an episode has numbers of its own, and keys are not drawn from what Math.random gives.
  const chance = generator(config.seed + imul(before.number, 0x9e3779b1));
  const keys = generator(config.seed + imul(before.number + 1, 0x85ebca6b) + 1);
  Math.random = function random() { return chance.next() / 4294967296; };
  const Bytes = Uint8Array;
  const fill = (array) => {
    const bytes = new Bytes(array.buffer, array.byteOffset, array.byteLength);
    for (let i = 0; i < bytes.length; i++) bytes[i] = keys.next() >>> 24;
    return array;
  };
  const randomValues = uncurried(Crypto.prototype.getRandomValues);
  replace(Crypto.prototype, "getRandomValues", function getRandomValues(array) {
    randomValues(this, array); // for its errors
    return fill(array);
  });
  if (window.isSecureContext)
    replace(Crypto.prototype, "randomUUID", function randomUUID() {
      const bytes = fill(new Bytes(16));
      let uuid = "";
      for (let i = 0; i < 16; i++) {
        const byte = i === 6 ? (bytes[i] & 15) | 64 : i === 8 ? (bytes[i] & 63) | 128 : bytes[i];
        uuid += (i === 4 || i === 6 || i === 8 || i === 10 ? "-" : "") + (byte < 16 ? "0" : "") + byte.toString(16);
      }
      return uuid;
    });

  // -- dialogs: the browser asks, and page time stands still (dialogs.py) -------------------------------------------
  // A dialog that the task's own script raises, by reading or resetting the page, is nobody's to answer. A page that
  // asks again and again is heard no more for a while, as in any browser.
  const asking = (name, agreed, refused) => {
    const real = window[name];
    replace(window, name, { [name](...args) {
      const tell = (how) => note("note", `${name} "${args.length ? args[0] : ""}": ${how}`);
      if (core.quiet) return tell("answered OK, as the task's own script raised it"), agreed(args);
      if (++core.dialogs > DIALOGS) return tell("not shown, since there were too many"), refused;
      const begin = sinceLoad();
      try { return apply(real, window, args); } finally { core.away += sinceLoad() - begin; }
    } }[name]);
  };
  asking("alert", () => undefined, undefined);
  asking("confirm", () => true, false);
  asking("prompt", (args) => (args[1] === undefined ? "" : text(args[1])), null);

  // -- popups -----------------------------------------------------------------------------------------------------
  const frameNames = window.frames;
  const here = (target) =>
    target === "_self" || target === "_parent" || target === "_top" || frameNames[target] !== undefined;
  const mayOpen = () => { // as browsers have it: a popup needs a press of the user, and uses it up
    const may = core.now - core.gesture <= GESTURE;
    core.gesture = -Infinity;
    if (!may) note("note", "a popup that nobody asked for was blocked");
    return may;
  };
  const realOpen = window.open;
  window.open = function open(...args) {
    const target = args[1] === undefined ? "" : text(args[1]);
    return (target !== "" && here(target)) || mayOpen() ? apply(realOpen, window, args) : null;
  };

  // -- a drag of HTML: the observer carries it on where the page lets it begin -------------------------------------
  const onDragStart = (event) => { if (event.isTrusted) core.drag = event; };
  const effectOf = property(DataTransfer.prototype, "dropEffect");
  const dragged = property(DragEvent.prototype, "dataTransfer");
  const onDragEnd = (event) => {
    if (!event.isTrusted) return;
    core.drag = null;
    if (effectOf(dragged(event)) === "none") note("note", "nothing took what was dragged");
  };
  const dragging = () => Boolean(core.drag) && !prevented(core.drag);

  // -- a file is asked for: the observer shows the session's files ----------------------------------------------------
  const choosing = () => {
    const asked = core.chooser;
    core.chooser = null;
    return Boolean(asked) && !(asked instanceof Event && prevented(asked));
  };
  const isFile = (node) => node instanceof HTMLInputElement && node.type === "file" && !node.disabled;
  const onChoose = (event) => { if (isFile(pathTo(event)[0])) core.chooser = event; };
  for (const [object, name] of [[HTMLElement.prototype, "click"], [HTMLInputElement.prototype, "showPicker"]]) {
    const method = object[name];
    replace(object, name, { [name](...args) {
      if (isFile(this) && !(name === "click" && this.isConnected)) core.chooser = true;
      return apply(method, this, args);
    } }[name]);
  }

  // -- what is under way: a navigation stops the clock until the next document is there ---------------------------
  const stays = (form, button) => {
    const target = (button && attribute(button, "formtarget")) || attribute(form, "target");
    const method = (button && attribute(button, "formmethod")) || attribute(form, "method") || "get";
    return method.toLowerCase() === "dialog" || (target && !(target === "_self" || here(target)));
  };
  const onGesture = (event) => { if (event.isTrusted) core.gesture = core.now, complaint = null; };
  const onMenu = (event) => push(core.menus, event);
  // A key by which the choice in a picker is made is one that no page hears of.
  const onKey = (event) => {
    if (!event.isTrusted) return;
    if (core.unheard) stop(event);
    else if (event.type === "keydown") core.key = event;
  };
  const onSubmit = (event) => push(core.submits, event);
  const onClick = (event) => {
    const link = targetOf(event) instanceof E && closest(targetOf(event), "a[href],area[href]");
    const target = link && attribute(link, "target");
    if (target && !here(target) && !prevented(event) && !event.isTrusted && !mayOpen()) event.preventDefault();
  };
  const submit = uncurried(HTMLFormElement.prototype.submit);
  replace(HTMLFormElement.prototype, "submit", { submit() {
    if (this.isConnected && !stays(this)) core.leaving = true;
    submit(this);
  } }.submit);
  const within = new WeakSet(); // navigations that the page makes of itself, without another document
  if (window.navigation) {
    listen(navigation, "navigate", (event) => {
      core.traversing = false;
      if (event.downloadRequest !== null) push(core.saves, event);
      else if (!event.destination.sameDocument) push(core.moves, event);
    });
    listen(navigation, "navigateerror", () => { core.leaving = false; });
    const intercept = uncurried(NavigateEvent.prototype.intercept);
    replace(NavigateEvent.prototype, "intercept", { intercept(options) {
      intercept(this, options);
      mark(within, this);
    } }.intercept);
    const travel = (name) => {
      const go = History.prototype[name];
      replace(History.prototype, name, { [name](...args) {
        core.traversing = this.length > 1;
        apply(go, this, args);
      } }[name]);
    };
    travel("back"); travel("forward"); travel("go");
  }
  const onTravelled = () => { core.traversing = false; };
  const leaving = () => {
    for (let i = 0; i < core.submits.length; i++) {
      const event = core.submits[i];
      if (!prevented(event) && !stays(targetOf(event), event.submitter)) core.leaving = true;
    }
    for (let i = 0; i < core.moves.length; i++)
      if (!prevented(core.moves[i]) && !has(within, core.moves[i])) core.leaving = true;
    core.submits.length = core.moves.length = 0;
    return core.leaving;
  };

  // Requests of scripts, and questions to workers, take no page time: the clock waits for them.
  let requests = 0;
  const begun = () => {
    const id = `${core.realms.length} ${requests++}`;
    core.pending[id] = true;
    return () => { delete core.pending[id]; };
  };
  const pending = () => {
    for (const _ in core.pending) return true;
    return false;
  };
  const track = (promise) => {
    const over = begun();
    then(promise, over, over);
    return promise;
  };
  const realFetch = window.fetch;
  replace(window, "fetch", { fetch(...args) { return track(apply(realFetch, window, args)); } }.fetch);
  const trackMethod = (object, name) => {
    const method = object[name];
    replace(object, name, { [name](...args) { return track(apply(method, this, args)); } }[name]);
  };
  for (const name of ["json", "text", "blob", "arrayBuffer", "formData"]) trackMethod(Response.prototype, name);
  const send = XMLHttpRequest.prototype.send;
  replace(XMLHttpRequest.prototype, "send", { send(...args) {
    listen(this, "loadend", begun(), { once: true });
    return apply(send, this, args);
  } }.send);

  // A message, or a task of the scheduler, comes before the next callback.
  const trackPosts = (object, name) => {
    const send = object[name];
    replace(object, name, { [name](...args) { core.posted = true; return apply(send, this, args); } }[name]);
  };
  for (const object of [window, MessagePort.prototype, BroadcastChannel.prototype]) trackPosts(object, "postMessage");
  if (postTask) trackPosts(Scheduler.prototype, "postTask");
  if (window.scheduler?.yield) trackPosts(Scheduler.prototype, "yield");

  // So do pictures, scripts and style sheets that come in later.
  const pictures = HTMLImageElement.prototype, source = Object.getOwnPropertyDescriptor(pictures, "src");
  const complete = property(pictures, "complete"), setSource = uncurried(source.set);
  define(pictures, "src", { ...source, set(value) {
    setSource(this, value);
    if (complete(this) || attribute(this, "loading") === "lazy") return;
    const over = begun();
    listen(this, "load", over, { once: true });
    listen(this, "error", over, { once: true });
  } });
  const imagesOf = property(Document.prototype, "images"), scriptsOf = property(Document.prototype, "scripts");
  const tagged = uncurried(Document.prototype.getElementsByTagName);
  const images = imagesOf(document), scripts = scriptsOf(document), links = tagged(document, "link"); // these are live
  const loaded = new WeakSet();
  const onLoaded = (event) => { if (targetOf(event) instanceof E) mark(loaded, targetOf(event)); };
  const onFailed = (event) => {
    const node = targetOf(event) instanceof E ? targetOf(event) : null;
    if (node) mark(loaded, node);
    if (node) note("fault", `could not load ${node.currentSrc || node.src || node.href || node.tagName}`);
    else note("fault", `${event.message} at ${event.filename}:${event.lineno}`);
  };
  const onRejected = (event) => note("fault", `unhandled rejection: ${event.reason}`);
  const onLoad = () => {
    for (let i = 0; i < images.length; i++) mark(loaded, images[i]);
    for (let i = 0; i < scripts.length; i++) mark(loaded, scripts[i]);
    for (let i = 0; i < links.length; i++) mark(loaded, links[i]);
  };
  const awaited = (node, address) => attribute(node, address) && !has(loaded, node);
  const unloaded = () => {
    for (let i = 0; i < images.length; i++)
      if (!complete(images[i]) && awaited(images[i], "src") && attribute(images[i], "loading") !== "lazy") return true;
    if (ready(document) !== "complete") return false;
    for (let i = 0; i < scripts.length; i++) if (awaited(scripts[i], "src") && !scripts[i].noModule) return true;
    for (let i = 0; i < links.length; i++)
      if (awaited(links[i], "href") && links[i].relList.contains("stylesheet") && !links[i].disabled) return true;
    return false;
  };

  // LOADS
  // -- letting things happen --------------------------------------------------------------------------------------
  const turns = new Channel(), turning = plain(null);
  let asked = 0, answered = 0;
  turns.port1.onmessage = () => {
    const resolve = turning[answered];
    delete turning[answered++];
    resolve();
  };
  const macrotask = () => new P((resolve) => {
    turning[asked++] = resolve;
    post(turns.port2, 0);
  });
  const sleep = (ms) => new P((resolve) => realTimeout(resolve, ms));
  // Everything that the page has put into its task queues is done; a page that never rests is given up on.
  const idle = () => {
    if (!postTask) return macrotask();
    return new P((resolve) => {
      let away = core.away;
      const late = () => { // it was none of the page's time where a dialog was open meanwhile
        if (core.away === away) return resolve();
        away = core.away;
        limit = realTimeout(late, 250);
      };
      let limit = realTimeout(late, 250);
      const done = () => (realClear(limit), resolve());
      then(postTask(theScheduler, done, { priority: "background" }), undefined, done);
    });
  };
  const settle = async () => {
    await idle();
    const begin = realNow(), busy = () => core.traversing || pending() || unloaded();
    for (let calm = busy() ? 0 : CALM; calm < CALM && !leaving() && realNow() - begin < PATIENCE;) {
      if (core.traversing && realNow() - begin > 500) core.traversing = false; // there was nowhere to go
      calm = busy() ? 0 : calm + 1;
      if (!calm) await sleep(2);
      await idle();
    }
    if (!core.leaving && (pending() || unloaded())) { // a stream, or a server that does not answer: it is waited for no more
      core.pending = plain(null);
      onLoad();
    }
  };

  // A document's style and layout ask for pictures and fonts too.
  const rested = async () => {
    if (root(document)) box(root(document));
    await settle();
  };

  const treeIn = (host) => treeOf(host) ?? seen(core.trees, host);
  /** The shadow trees of all realms, outer ones first; but for closed ones that a document was sent with, which no
   *  script reaches. */
  const shadowTrees = () => {
    const found = [];
    const look = (nodes) => {
      for (let i = 0; i < nodes.length; i++) {
        const tree = treeIn(nodes[i]);
        if (tree) push(found, tree);
      }
    };
    for (let r = 0; r < core.realms.length; r++) {
      const shown = reached(core.realms[r]);
      if (shown) look(find(shown, "*"));
    }
    for (let t = 0; t < found.length; t++) look(findIn(found[t], "*"));
    return found;
  };

  const lives = new WeakMap(); // animation -> { time, seen }: its own time, and the page time when it was last moved
  const drive = (animations) => {
    for (let i = 0; i < animations.length; i++) {
      const animation = animations[i], effect = animation.effect;
      if (animation.timeline && "axis" in animation.timeline) continue; // it follows a scroll
      let life = seen(lives, animation);
      if (!life) {
        if (animation.playState !== "running") continue;
        remember(lives, animation, (life = { time: 0, seen: core.now }));
        animation.pause();
      }
      const held = animation.animationName !== undefined && effect?.target &&
        style(effect.target, effect.pseudoElement).animationPlayState === "paused";
      if (!held) life.time += (core.now - life.seen) * animation.playbackRate;
      life.seen = core.now;
      const end = effect ? effect.getComputedTiming().endTime : 0;
      if (life.time >= end && animation.playState !== "finished") animation.finish();
      else if (life.time < end) animation.currentTime = max(life.time, 0);
    }
  };
  const driveAnimations = (trees) => {
    for (let r = core.realms.length - 1; r >= 0; r--) {
      const shown = reached(core.realms[r]);
      if (shown) drive(animationsOf(shown));
    }
    for (let t = 0; t < trees.length; t++) drive(animationsIn(trees[t]));
  };

  let strange = 0; // what frames of other origins tell of their controls
  const strangers = (trees) => {
    const found = [];
    const look = (frame) => {
      try { if (frame && !frame.document) push(found, frame); } catch { push(found, frame); } // of another origin
    };
    for (let r = 0; r < core.realms.length; r++)
      if (reached(core.realms[r])) for (let i = 0; i < core.realms[r].length; i++) look(core.realms[r][i]);
    for (let t = 0; t < trees.length; t++) { // a window does not count what is in them
      const frames = findIn(trees[t], "iframe");
      for (let i = 0; i < frames.length; i++) look(windowOf(frames[i]));
    }
    return found;
  };
  /** Frames of other origins have clocks of their own. */
  const advanceStrangers = async (ms, trees) => {
    strange = 0;
    const frames = strangers(trees);
    for (let i = 0; i < frames.length; i++) {
      const answer = new Channel();
      await new P((resolve) => {
        answer.port1.onmessage = (event) => resolve(strange = max(strange, number(event.data) || 0));
        realTimeout(() => realTimeout(resolve, 50), 1000); // an answer that a dialog held up comes before the second
        apply(frameSend, frames[i], [{ __flywheel__: "advance", ms }, "*", [answer.port2]]);
      });
      closePort(answer.port1);
    }
  };
  const above = [];
  for (let frame = window; frame !== top; frame = frame.parent) push(above, frame.parent);
  const isAbove = (frame) => {
    for (let i = 0; i < above.length; i++) if (above[i] === frame) return true;
    return false;
  };
  const onMessage = (event) => {
    if (event.data?.__flywheel__ !== "advance" || !isAbove(event.source)) return;
    event.stopImmediatePropagation();
    const port = event.ports[0];
    then(advance(event.data.ms), () => post(port, picking()));
  };

  /** Run the next callback that is due by `end`; false where none is. */
  const runNext = (end) => {
    let first = "", due = null;
    for (const id in core.timers) {
      const timer = core.timers[id];
      if (!due || timer.at < due.at) { first = id; due = timer; }
    }
    const frameAt = core.waiting > 0 ? max(core.nextFrame, core.now) : Infinity;
    const timerAt = due ? due.at : Infinity;
    if (min(frameAt, timerAt) > end) return false;
    if (timerAt <= frameAt) {
      core.now = max(core.now, timerAt);
      if (due.realm.closed || !due.every) delete core.timers[first];
      else due.at = core.now + due.every;
      core.depth = due.depth;
      if (!due.realm.closed) due.run();
      core.depth = 0;
    } else {
      core.now = frameAt;
      core.nextFrame = frameAt + FRAME;
      const batch = core.frames;
      core.frames = plain(null);
      core.waiting = 0;
      for (const id in batch) if (!batch[id].realm.closed) batch[id].run();
    }
    return true;
  };

  // Where much time is to pass, a task runs several callbacks, each from a listener of its own: between two listeners
  // the browser does all that was left to promises, as between two tasks, but what was drawn is not made pixels.
  // A task ends early where something that the page began has to happen first.
  const crowd = new Channel();
  let rush = null;
  const rushOn = () => {
    rush.over = rush.over || leaving() || core.posted || pending() || unloaded() || !runNext(rush.end);
  };
  for (let i = 0; i < CROWD; i++) listen(crowd.port1, "message", () => rushOn());
  listen(crowd.port1, "message", () => rush.resolve());
  crowd.port1.start();
  const together = (end) => new P((resolve) => {
    rush = { end, resolve, over: false };
    post(crowd.port2, 0);
  });

  /** Pass `ms` of page time, or less where the page is being left. Gives what is left of it. */
  const advance = async (ms) => {
    const begin = core.now, end = begin + ms;
    driveAnimations(shadowTrees());
    while (!leaving()) {
      if (!runNext(end)) {
        core.now = end;
        break;
      }
      const hurried = !core.posted && end - core.now > HURRY;
      if (hurried) await together(end);
      if (core.posted || !hurried) {
        core.posted = false;
        await macrotask();
      }
      if (pending() || unloaded()) await settle();
    }
    const trees = shadowTrees();
    driveAnimations(trees);
    await advanceStrangers(core.now - begin, trees);
    return end - core.now;
  };

  // -- what an observer asks for ------------------------------------------------------------------------------------
  const share = (value, whole) => round((value / whole) * 1e4) / 1e4;
  // Named elements: those in the viewport, and those beyond it, to which one would have to scroll.
  const elements = () => {
    const found = [], beyond = [], nodes = find(document, "[data-el]"), focus = active(document);
    for (let i = 0; i < nodes.length; i++) {
      const node = nodes[i], area = box(node);
      const one = {
        name: attribute(node, "data-el"),
        x: share(area.x, innerWidth), y: share(area.y, innerHeight),
        w: share(area.width, innerWidth), h: share(area.height, innerHeight),
        focused: node === focus,
      };
      if (!(one.w > 0 && one.h > 0)) continue;
      if (one.x >= 1 || one.y >= 1 || one.x + one.w <= 0 || one.y + one.h <= 0) {
        push(beyond, { name: one.name, x: one.x + one.w / 2, y: one.y + one.h / 2 });
        continue;
      }
      if (matches(node, "input, textarea, select")) one.value = slice(text(node.value), 0, 200);
      if (matches(node, "select")) one.picker = true;
      else if (one.value && node.selectionStart === 0) one.selected = node.selectionEnd === node.value.length;
      if (matches(node, "input[type=checkbox], input[type=radio]")) one.checked = node.checked;
      push(found, one);
    }
    return { elements: found, beyond };
  };
  /** What `ask` gives, while no dialog may open. */
  const quietly = (ask) => {
    core.quiet += 1;
    try { return ask(); } finally { core.quiet -= 1; }
  };
  const gameState = () => (window.__env__ ? quietly(() => window.__env__.getState()) : null);

  let patience = config.patience; // real milliseconds that are left for the load event, which may never come
  // -- native controls ----------------------------------------------------------------------------------------------
  // A picker of the browser's is a window of its own, which nobody draws here: the observer, told of one, closes it and
  // shows another (`pickers.py`). `:open` tells; a shadow tree is asked where the focus is in it.
  const OPEN = "select:open, input:open", LISTED = "input[list]:not(:disabled, :read-only)";
  const HOSTS = "article, aside, blockquote, div, footer, h1, h2, h3, h4, h5, h6, header, main, nav, p, section, span";
  const focusIn = property(ShadowRoot.prototype, "activeElement");
  const tagOf = property(E.prototype, "localName"), includes = uncurried(String.prototype.includes);
  const attach = E.prototype.attachShadow;
  replace(E.prototype, "attachShadow", { attachShadow(...args) {
    const tree = apply(attach, this, args);
    remember(core.trees, this, tree);
    return tree;
  } }.attachShadow);
  let wanted = null; // asked for its picker, by script: it may be anywhere
  for (const prototype of [HTMLInputElement.prototype, HTMLSelectElement.prototype]) {
    const show = prototype.showPicker;
    if (show) replace(prototype, "showPicker", { showPicker(...args) {
      apply(show, this, args);
      wanted = this;
    } }.showPicker);
  }
  // What a field lacks, a browser tells in a bubble that fades in by the display's own time: it is told otherwise too.
  // The bubble belongs to the first field that the page leaves to the browser; one that is only asked has none.
  let complaint = null, checking = 0;
  const focus = uncurried(HTMLElement.prototype.focus);
  const onInvalid = (event) => {
    const node = targetOf(event);
    if (!event.isTrusted || checking) return;
    listen(node, "invalid", (last) => {
      if (last !== event || prevented(event)) return;
      cancel(event);
      if (complaint) return;
      focus(node);
      if (matches(node, ":focus")) complaint = node;
    }, { once: true });
  };
  for (const kind of [HTMLFormElement, HTMLInputElement, HTMLSelectElement, HTMLTextAreaElement, HTMLButtonElement]) {
    const check = kind.prototype.checkValidity;
    replace(kind.prototype, "checkValidity", { checkValidity() {
      checking += 1;
      try { return apply(check, this, []); } finally { checking -= 1; }
    } }.checkValidity);
  }
  const drawn = (node) => // by the page itself
    style(node).appearance === "base-select" && style(node, "::picker(select)").appearance === "base-select";
  const opened = (node) => matches(node, OPEN) && (tagOf(node) === "input" || !drawn(node));
  const focused = (root) => {
    let node = active(root), tree = null;
    while (node && (tree = treeIn(node)) && focusIn(tree)) node = focusIn(tree);
    return node;
  };
  // An element that takes no focus itself has it in a tree that its document was sent with, closed to all scripts.
  const veiled = (node) => (includes(tagOf(node), "-") || matches(node, HOSTS)) && !treeIn(node)
    && attribute(node, "tabindex") === null && attribute(node, "contenteditable") === null;
  /** 3: a picker is open, 2: the field that has the focus lacks something, 1: it suggests what to enter, 0: nothing. */
  const picking = () => {
    let found = strange;
    if (wanted && opened(wanted)) return 3;
    for (let r = 0; r < core.realms.length; r++) {
      const shown = reached(core.realms[r]);
      if (!shown) continue;
      const nodes = find(shown, OPEN), node = focused(shown);
      for (let i = 0; i < nodes.length; i++) if (opened(nodes[i])) return 3;
      if (node && (opened(node) || veiled(node))) return 3;
      if (node && matches(node, LISTED)) found = max(found, 1);
    }
    return complaint && matches(complaint, ":focus:invalid") ? max(found, 2) : found;
  };

  /** Let what was begun finish, pass `ms`, and tell what there is. `left`: of `ms`, where the page is being left.
   *  time: of the session, which a document that was handed none catches up with. until: the session's time at the
   *  end, in place of `ms`, where nobody knows how much of a step the last document has passed. late: the load has
   *  been waited for long enough. */
  const observe = async (ms, reading = gameState, time = 0, until = null, late = false) => {
    core.start += max(0, time - core.start - core.now);
    if (until !== null) ms = max(0, round((until - core.start - core.now) * 1e6) / 1e6);
    if (late) patience = 0;
    const begin = realNow(), most = patience;
    while (ready(document) !== "complete" && !leaving() && realNow() - begin < most) {
      await sleep(3);
      await idle();
      patience = max(most - (realNow() - begin), 0);
    }
    await rested();
    const left = await advance(ms);
    if (!core.leaving) await rested();
    if (unprevented(core.menus)) note("note", "no menu opens here: what it offers is done by keys");
    const told = {
      leaving: leaving(), left, time: core.start + core.now,
      notes: core.notes, copied: core.copied, files: unprevented(core.saves), drawn: core.drawn,
    };
    core.notes = [];
    core.copied = null;
    core.leaving = false; // a navigation that comes to nothing is not waited for twice
    core.dialogs = 0;
    core.key = null;
    if (told.leaving) return told;
    const { elements: found, beyond } = elements();
    const asked = { dragging: dragging(), choosing: choosing() }, game = reading() ?? null;
    return { ...told, ...asked, url: location.href, elements: found, beyond, game, picking: picking(), date: date() };
  };

  /** How many of these events the page left to the browser; they are forgotten. */
  const unprevented = (events) => {
    let left = 0;
    for (let i = 0; i < events.length; i++) if (!prevented(events[i])) left += 1;
    events.length = 0;
    return left;
  };

  const realFind = window.find?.bind(window), visible = property(HTMLElement.prototype, "innerText");
  /** Select the next place of a text (go: 1), the one before (-1), or the one at hand (0); how many there are. */
  const look = (what, go) => {
    const chosen = selection();
    if (what === "") return chosen.removeAllRanges(), 0;
    if (go === 0 && chosen.rangeCount) chosen.collapseToStart();
    realFind(what, false, go < 0, true, false, true, false);
    const all = document.body ? visible(document.body) : "";
    return all.toLowerCase().split(what.toLowerCase()).length - 1;
  };

  /** Whether the page took the last key, so that the browser does nothing with it. */
  const keyTaken = () => core.key !== null && prevented(core.key);

  /** Run what prepares a page for its episode; page time passes while it waits for that. */
  const prepare = async (begin) => {
    let over = false, failure = null;
    (async () => {
      try { await begin(); } catch (error) { failure = error ?? new Error("it threw nothing"); }
      over = true;
    })();
    for (let spent = 0; spent < 10000 && !over; spent += 50) {
      await settle();
      if (!over) await advance(50);
    }
    if (failure) throw failure;
    if (!over) throw new Error("it is not done after 10 s of page time");
  };

  // -- checkpoints --------------------------------------------------------------------------------------------------
  const pathOf = (node) => {
    const path = [];
    for (; node && node.parentElement; node = node.parentElement)
      path.unshift([...node.parentElement.children].indexOf(node));
    return path;
  };
  const storage = (store) => {
    const kept = [];
    for (let i = 0; i < store.length; i++) push(kept, [store.key(i), store.getItem(store.key(i))]);
    return kept;
  };
  // What the document is, with what its fields hold: 32 bits of it (FNV-1a).
  const likeness = () => {
    let said = document.documentElement.outerHTML, hash = 0x811c9dc5;
    const fields = find(document, "input, textarea, select");
    for (let i = 0; i < fields.length; i++) said += `\n${fields[i].value}${fields[i].checked ? " on" : ""}`;
    for (let i = 0; i < said.length; i++) hash = imul(hash ^ said.charCodeAt(i), 0x01000193);
    return hash >>> 0;
  };
  const plan = () => {
    const every = [], at = [];
    for (const id in core.timers) { push(every, core.timers[id].every); push(at, core.timers[id].at); }
    return { every, at };
  };

  const save = async () => ({
    start: core.start, now: core.now, nextFrame: core.nextFrame, chance: chance.state.value, keys: keys.state.value,
    ...plan(), waiting: core.waiting, likeness: likeness(), scroll: [scrollX, scrollY], focus: pathOf(active(document)),
    local: storage(localStorage), session: storage(sessionStorage),
    databases: window.indexedDB?.databases ? (await indexedDB.databases()).length : 0,
    state: gameState(), restorable: Boolean(window.__env__?.setState) && core.realms.length === 1,
  });
  /** Bring back what `save` gave, in a fresh document; false where document or timers are not what they were. */
  const load = async (kept) => {
    for (const [store, pairs] of [[localStorage, kept.local], [sessionStorage, kept.session]]) {
      store.clear();
      for (const [key, value] of pairs) store.setItem(key, value);
    }
    [core.start, core.now, core.nextFrame] = [kept.start, kept.now, kept.nextFrame];
    await window.__env__.setState(kept.state);
    await settle();
    if (plan().every.join() !== kept.every.join() || core.waiting !== kept.waiting) return false;
    if (likeness() !== kept.likeness) return false;
    [chance.state.value, keys.state.value] = [kept.chance, kept.keys];
    let i = 0;
    for (const id in core.timers) core.timers[id].at = kept.at[i++];
    scrollTo(...kept.scroll);
    let node = document.documentElement;
    for (const index of kept.focus) node = node?.children[index];
    if (node && node !== document.body) node.focus({ preventScroll: true });
    return true;
  };

  // -- put in place, and again after document.open(), which takes every listener away -------------------------------
  // -- the clipboard ------------------------------------------------------------------------------------------------
  // The browser's own is one for all sessions. Each has one instead, `core.clipboard`, which its tab hands on.
  const toText = uncurried(DataTransfer.prototype.getData), command = uncurried(Document.prototype.execCommand);
  const dispatch = uncurried(EventTarget.prototype.dispatchEvent), Data = DataTransfer, Pasted = ClipboardEvent;
  const clipOf = property(ClipboardEvent.prototype, "clipboardData");
  const fillWith = uncurried(DataTransfer.prototype.setData), stop = uncurried(Event.prototype.stopImmediatePropagation);
  const cancel = uncurried(Event.prototype.preventDefault), selection = window.getSelection.bind(window);
  const keepCopied = (what) => { core.clipboard = core.copied = what; };
  const selected = (node) => {
    if (!(node instanceof E) || !matches(node, "input, textarea")) return text(selection());
    return node.type === "password" ? "" : slice(node.value, node.selectionStart ?? 0, node.selectionEnd ?? 0);
  };
  const onCopy = (event) => {
    const what = prevented(event) ? toText(clipOf(event), "text/plain") : selected(active(document));
    if (what) keepCopied(what);
  };
  const onPaste = (event) => {
    if (!event.isTrusted) return; // the page's own, or the one below
    stop(event);
    cancel(event);
    const data = new Data(), target = pathTo(event)[0];
    fillWith(data, "text/plain", core.clipboard);
    const own = new Pasted("paste", { clipboardData: data, bubbles: true, cancelable: true, composed: true });
    if (dispatch(target, own) && core.clipboard) command(document, "insertText", false, core.clipboard);
  };
  if (window.Clipboard)
    replace(Clipboard.prototype, "writeText", { async writeText(what) { keepCopied(text(what)); } }.writeText);

  // A caret that blinks would do so in real time.
  const still = new CSSStyleSheet();
  still.replaceSync(":root { caret-animation: manual; }");
  const settleIn = () => {
    const early = { capture: true };
    for (const kind of ["keydown", "keypress", "keyup"]) listen(window, kind, onKey, early);
    listen(window, "mousedown", onGesture, early);
    listen(window, "keydown", onGesture, early);
    listen(window, "invalid", onInvalid, early);
    listen(window, "submit", onSubmit);
    listen(window, "contextmenu", onMenu, early);
    listen(window, "click", onClick);
    listen(window, "popstate", onTravelled);
    listen(window, "pagehide", onHide);
    listen(window, "error", onFailed, early);
    listen(window, "unhandledrejection", onRejected);
    listen(window, "message", onMessage, early);
    listen(window, "load", onLoad);
    listen(window, "securitypolicyviolation", onReport, early);
    listen(window, "click", onChoose, early);
    listen(window, "dragstart", onDragStart, early);
    listen(window, "dragend", onDragEnd, early);
    listen(window, "copy", onCopy);
    listen(window, "cut", onCopy);
    listen(window, "paste", onPaste, early);
    listen(document, "load", onLoaded, early);
    document.adoptedStyleSheets = [still];
  };
  settleIn();
  for (const name of ["open", "write", "writeln"]) {
    const method = Document.prototype[name];
    replace(Document.prototype, name, { [name](...args) {
      const answer = apply(method, this, args);
      if (same(this, document)) settleIn();
      return answer;
    } }[name]);
  }

  const offered = { core, observe, prepare, save, load, settleIn, features, keyTaken, find: look, note, track };
  define(window, "__flywheel__", { value: Object.freeze(offered) });
})();
