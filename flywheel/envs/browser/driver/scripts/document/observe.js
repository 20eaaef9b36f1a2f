// What an observer asks for.
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
