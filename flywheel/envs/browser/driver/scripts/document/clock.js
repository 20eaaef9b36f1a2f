// Time that stands still until it is advanced (`advance.js`): timers, frames, dates and time stamps.
const EPOCH = RealDate.UTC(2026, 0, 1, 9);
const NESTED = 5, CLAMP = 4; // timers set by timers, five deep, wait 4 ms at least, as in every browser

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
