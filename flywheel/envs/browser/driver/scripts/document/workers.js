// Workers have the page's time (`worker_clock.js`): each is told it when it begins, when it is sent something and when
// its next timer is due, and the page's clock waits until it has nothing left to do then.
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
