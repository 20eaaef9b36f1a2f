// Frames of other origins have clocks of their own, which are advanced by message.
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
