// Page time passes: one callback after the other, as each is due.
const HURRY = 1000, CROWD = 16; // page milliseconds still to pass, above which so many callbacks share a task

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
