// Runs in every dedicated worker before its own script: its timers follow the page's clock, its chance is seeded.
// `CONFIG` is replaced: { seed, start }. The page's clock (`workers.js`) says which time it is and waits for the answer,
// which comes when the worker has nothing left to do until its next timer. Both speak by messages of the worker's own
// channel, which no script sees, so that an answer never overtakes what the worker said before it.
(() => {
  "use strict";
  const config = CONFIG, construct = Reflect.construct, scope = self, P = Promise;
  const RealDate = Date, plain = Object.create, apply = Reflect.apply;
  const { floor, imul, max, min } = Math, number = Number, define = Object.defineProperty;
  const then = Function.prototype.call.bind(P.prototype.then), listen = scope.addEventListener.bind(scope);
  const say = scope.postMessage.bind(scope);
  const realNow = performance.now.bind(performance), indirect = eval;
  // These are not there yet: a worker gets them as its script begins.
  const realTimeout = (callback, ms) => apply(WorkerGlobalScope.prototype.setTimeout, scope, [callback, ms]);
  const report = (error) => apply(WorkerGlobalScope.prototype.reportError, scope, [error]);
  const EPOCH = RealDate.UTC(2026, 0, 1, 9), FRAME = 1000 / 60, PATIENCE = 1000;
  let now = config.start, born = null, nextId = 1, depth = 0, busy = 0;
  const timers = plain(null);

  const turns = new MessageChannel(), turning = [];
  turns.port1.onmessage = () => turning.shift()();
  const macrotask = () => new P((resolve) => { turning.push(resolve); turns.port2.postMessage(0); });

  const add = (callback, wait, every, args) => {
    timers[nextId] = { at: now + wait, every, depth: depth + 1, run: () => {
      try {
        if (typeof callback === "function") apply(callback, scope, args); else indirect(String(callback));
      } catch (error) { report(error); }
    } };
    return nextId++;
  };
  const delay = (ms, every) => min(max(number(ms) || 0, depth >= 5 ? 4 : every ? 1 : 0), 2 ** 31);
  const put = (object, name, value) => define(object, name, { value, writable: true, configurable: true });
  put(scope, "setTimeout", function setTimeout(callback, ms, ...args) {
    return add(callback, delay(ms, false), 0, args);
  });
  put(scope, "setInterval", function setInterval(callback, ms, ...args) {
    return add(callback, delay(ms, true), delay(ms, true), args);
  });
  put(scope, "requestAnimationFrame", function requestAnimationFrame(callback) {
    const at = (floor((now - born) / FRAME + 1e-6) + 1) * FRAME + born;
    return add((...args) => callback(now - born, ...args), at - now, 0, []);
  });
  for (const name of ["clearTimeout", "clearInterval", "cancelAnimationFrame"])
    put(scope, name, { [name](id) { delete timers[id]; } }[name]);
  put(Performance.prototype, "now", function () { return max(now - (born ?? now), 0); });
  const date = () => floor(EPOCH + now);
  scope.Date = new Proxy(RealDate, {
    construct: (target, args, made) => construct(target, args.length ? args : [date()], made),
    apply: () => new RealDate(date()).toString(),
    get: (target, key) => (key === "now" ? date : Reflect.get(target, key)),
  });
  let chance = config.seed >>> 0;
  const draw = () => {
    chance = (chance + 0x6d2b79f5) >>> 0;
    let t = imul(chance ^ (chance >>> 15), chance | 1);
    t = (t + imul(t ^ (t >>> 7), t | 61)) ^ t;
    return (t ^ (t >>> 14)) >>> 0;
  };
  Math.random = function random() { return draw() / 4294967296; };
  put(Crypto.prototype, "getRandomValues", function getRandomValues(array) {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    for (let i = 0; i < bytes.length; i++) bytes[i] = draw() >>> 24;
    return array;
  });

  // Requests of the worker hold its answer up.
  const track = (promise) => {
    const over = () => { busy -= 1; };
    busy += 1;
    then(promise, over, over);
    return promise;
  };
  const tracked = (object, name) => {
    const method = object?.[name];
    if (method) put(object, name, { [name](...args) { return track(apply(method, this, args)); } }[name]);
  };
  tracked(scope, "fetch"); tracked(scope, "createImageBitmap");
  for (const name of ["json", "text", "blob", "arrayBuffer", "formData"]) tracked(Response.prototype, name);
  for (const name of ["compile", "instantiate", "compileStreaming", "instantiateStreaming"]) tracked(WebAssembly, name);
  const rest = async () => {
    await macrotask();
    for (const begin = realNow(); busy > 0 && realNow() - begin < PATIENCE;) {
      await new P((resolve) => realTimeout(resolve, 2));
      await macrotask();
    }
    await macrotask();
  };
  const earliest = () => {
    let first = null;
    for (const id in timers) if (first === null || timers[id].at < timers[first].at) first = id;
    return first;
  };
  const goTo = async (time) => {
    await rest(); // what came before this message, at its own time
    for (let id = earliest(); id !== null && timers[id].at <= time; id = earliest()) {
      const timer = timers[id];
      now = max(now, timer.at);
      if (timer.every) timer.at = now + timer.every; else delete timers[id];
      depth = timer.depth;
      timer.run();
      depth = 0;
      await rest();
    }
    now = max(now, time);
  };
  let turn = P.resolve();
  listen("message", (event) => {
    const asked = event.data?.__flywheel__;
    if (!asked) return;
    event.stopImmediatePropagation();
    const id = earliest();
    if (id === null || timers[id].at > asked.time) now = max(now, asked.time);
    if (born === null) born = now;
    if (asked.number === undefined) return; // the time alone, ahead of a message of the page's
    turn = then(turn, async () => {
      await goTo(asked.time);
      const id = earliest();
      say({ __flywheel__: { number: asked.number, due: id === null ? null : timers[id].at } });
    });
  });
  const close = scope.close.bind(scope);
  put(scope, "close", () => { say({ __flywheel__: { closed: true } }); close(); });
  say({ __flywheel__: { hello: true } });
})();
