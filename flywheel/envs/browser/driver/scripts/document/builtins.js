// The built-in functions that the other parts use, taken before any script of the page: a page may replace each of them
// afterwards. The script before this one leaves the configuration: { seed, start, patience, policy, session }.

// The first document of a frame, which is empty, leaves its window to the next one.
if (window.__flywheel__) return window.__flywheel__.settleIn();
const config = window.__flywheel_config__;
delete window.__flywheel_config__;
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
