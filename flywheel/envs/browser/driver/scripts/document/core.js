// The state that the other parts share, `core`. Frames of one origin have that of their parent; a frame of another
// origin has its own, whose time is advanced by message (`frames.js`).
const FRAME = 1000 / 60;
const NOTES = 20; // of one look

// A document hands time and notes to the next one of its origin, in a store that it empties before any script looks.
// What one of the target's last session left there, the first of the next one empties too.
const CARRY = "__flywheel_carry__";
const carried = () => {
  const fresh = { start: config.start, number: 0, notes: [], copied: null };
  try {
    if (parent !== window) return fresh;
    const left = sessionStorage.getItem(CARRY);
    sessionStorage.removeItem(CARRY);
    const kept = parse(left);
    if (kept?.session === config.session) return kept;
    if (config.session > 0) {
      sessionStorage.clear();
      window.name = "";
    }
    return fresh;
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
    next.session = config.session;
    sessionStorage.setItem(CARRY, stringify(next));
  } catch { /* a document without storage */ }
};
