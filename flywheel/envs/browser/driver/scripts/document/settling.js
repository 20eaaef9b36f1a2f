// Letting happen what was begun, while no page time passes.
const PATIENCE = 1500; // real milliseconds that a load may hold time up
const CALM = 2; // looks in a row at which nothing is under way any more: what came in may ask for more

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
