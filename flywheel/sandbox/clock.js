// Runs in every document before its own scripts: time that stands still until it is advanced, seeded chance,
// and what an observer needs to know. `SEED` is replaced at each reset.
(() => {
  "use strict";
  const real = { Date, setTimeout: window.setTimeout.bind(window), MessageChannel };
  const EPOCH = real.Date.UTC(2026, 0, 1, 9);
  const FRAME = 1000 / 60;

  let now = 0;
  let nextId = 1;
  let timers = new Map(); // id -> { at, every, run }
  let frames = new Map(); // id -> callback
  let nextFrame = FRAME;
  let leaving = false; // a navigation was asked for and has not been committed yet

  const run = (callback, args) => {
    try {
      if (typeof callback === "function") callback(...args);
      else (0, eval)(String(callback));
    } catch (error) {
      reportError(error);
    }
  };
  const addTimer = (callback, delay, every, args) => {
    const wait = Math.max(Number(delay) || 0, every ? 1 : 0);
    timers.set(nextId, { at: now + wait, every: every ? wait : 0, run: () => run(callback, args) });
    return nextId++;
  };
  window.setTimeout = (callback, delay, ...args) => addTimer(callback, delay, false, args);
  window.setInterval = (callback, delay, ...args) => addTimer(callback, delay, true, args);
  window.requestIdleCallback = (callback) =>
    addTimer(callback, 1, false, [{ didTimeout: false, timeRemaining: () => 10 }]);
  window.clearTimeout = window.clearInterval = window.cancelIdleCallback = (id) => void timers.delete(id);
  window.requestAnimationFrame = (callback) => (frames.set(nextId, callback), nextId++);
  window.cancelAnimationFrame = (id) => void frames.delete(id);
  performance.now = () => now;

  window.Date = new Proxy(real.Date, {
    construct: (target, args, self) => Reflect.construct(target, args.length ? args : [EPOCH + now], self),
    apply: () => new real.Date(EPOCH + now).toString(),
    get: (target, key) => (key === "now" ? () => Math.floor(EPOCH + now) : Reflect.get(target, key)),
  });
  real.Date.prototype.constructor = window.Date;

  let chance = SEED >>> 0;
  Math.random = () => {
    chance = (chance + 0x6d2b79f5) >>> 0;
    let t = Math.imul(chance ^ (chance >>> 15), chance | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };

  // Lets the page's own tasks and promises run, without any real time.
  const macrotask = () => new Promise((resolve) => {
    const channel = new real.MessageChannel();
    channel.port1.onmessage = () => (channel.port1.close(), resolve());
    channel.port2.postMessage(0);
  });

  const born = new WeakMap();
  const driveAnimations = () => {
    for (const animation of document.getAnimations()) {
      if (!born.has(animation)) {
        born.set(animation, now);
        animation.pause();
      }
      animation.currentTime = now - born.get(animation);
    }
  };

  const advance = async (ms) => {
    const end = now + ms;
    for (;;) {
      let due = null;
      for (const [id, timer] of timers) if (!due || timer.at < due.timer.at) due = { id, timer };
      const frameAt = frames.size ? Math.max(nextFrame, now) : Infinity;
      const timerAt = due ? due.timer.at : Infinity;
      if (Math.min(frameAt, timerAt) > end) break;
      if (timerAt <= frameAt) {
        now = Math.max(now, timerAt);
        if (due.timer.every) due.timer.at = now + due.timer.every;
        else timers.delete(due.id);
        due.timer.run();
      } else {
        now = frameAt;
        nextFrame = frameAt + FRAME;
        const batch = [...frames.values()];
        frames = new Map();
        for (const callback of batch) run(callback, [now]);
      }
      await macrotask();
    }
    now = end;
    driveAnimations();
  };

  addEventListener("click", (event) => {
    const link = event.target instanceof Element && event.target.closest("a[href]");
    if (link && !event.defaultPrevented && !link.getAttribute("href").startsWith("#")) leaving = true;
  });
  addEventListener("submit", (event) => { if (!event.defaultPrevented) leaving = true; });

  const elements = () => [...document.querySelectorAll("[data-el]")].map((node) => {
    const box = node.getBoundingClientRect();
    const share = (value, whole) => Math.round((value / whole) * 1e4) / 1e4;
    return {
      name: node.dataset.el,
      x: share(box.x, innerWidth), y: share(box.y, innerHeight),
      w: share(box.width, innerWidth), h: share(box.height, innerHeight),
      focused: node === document.activeElement,
    };
  }).filter((e) => e.w > 0 && e.h > 0 && e.x < 1 && e.y < 1 && e.x + e.w > 0 && e.y + e.h > 0);

  /** Let what was begun finish (a navigation destroys this call: ask again), pass `ms`, and tell what there is. */
  const observe = async (ms) => {
    await macrotask();
    await macrotask();
    if (leaving) await new Promise((resolve) => real.setTimeout(resolve, 3000));
    leaving = false;
    if (document.readyState !== "complete") {
      await new Promise((resolve) => addEventListener("load", resolve, { once: true }));
      await macrotask();
    }
    await advance(ms);
    return { elements: elements(), game: window.__env__ ? window.__env__.getState() : null };
  };
  Object.defineProperty(window, "__flywheel__", { value: Object.freeze({ observe }) });
})();
