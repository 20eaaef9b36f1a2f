// What a checkpoint keeps of a page, and how it comes back.
const pathOf = (node) => {
  const path = [];
  for (; node && node.parentElement; node = node.parentElement)
    path.unshift([...node.parentElement.children].indexOf(node));
  return path;
};
const storage = (store) => {
  const kept = [];
  for (let i = 0; i < store.length; i++) push(kept, [store.key(i), store.getItem(store.key(i))]);
  return kept;
};
// What the document is, with what its fields hold, but for its folder, which may be the session's: 32 bits (FNV-1a).
const likeness = () => {
  const folder = new URL(".", document.baseURI).pathname;
  let said = document.documentElement.outerHTML.split(folder).join("/"), hash = 0x811c9dc5;
  const fields = find(document, "input, textarea, select");
  for (let i = 0; i < fields.length; i++) said += `\n${fields[i].value}${fields[i].checked ? " on" : ""}`;
  for (let i = 0; i < said.length; i++) hash = imul(hash ^ said.charCodeAt(i), 0x01000193);
  return hash >>> 0;
};
const plan = () => {
  const every = [], at = [];
  for (const id in core.timers) { push(every, core.timers[id].every); push(at, core.timers[id].at); }
  return { every, at };
};

const save = async () => ({
  start: core.start, now: core.now, nextFrame: core.nextFrame, chance: chance.state.value, keys: keys.state.value,
  ...plan(), waiting: core.waiting, likeness: likeness(), scroll: [scrollX, scrollY], focus: pathOf(active(document)),
  local: storage(localStorage), session: storage(sessionStorage),
  databases: window.indexedDB?.databases ? (await indexedDB.databases()).length : 0,
  state: gameState(), restorable: Boolean(window.__env__?.setState) && core.realms.length === 1,
});
/** Bring back what `save` gave, in a fresh document; false where document or timers are not what they were. */
const load = async (kept) => {
  for (const [store, pairs] of [[localStorage, kept.local], [sessionStorage, kept.session]]) {
    store.clear();
    for (const [key, value] of pairs) store.setItem(key, value);
  }
  [core.start, core.now, core.nextFrame] = [kept.start, kept.now, kept.nextFrame];
  await window.__env__.setState(kept.state);
  await settle();
  if (plan().every.join() !== kept.every.join() || core.waiting !== kept.waiting) return false;
  if (likeness() !== kept.likeness) return false;
  [chance.state.value, keys.state.value] = [kept.chance, kept.keys];
  let i = 0;
  for (const id in core.timers) core.timers[id].at = kept.at[i++];
  scrollTo(...kept.scroll);
  let node = document.documentElement;
  for (const index of kept.focus) node = node?.children[index];
  if (node && node !== document.body) node.focus({ preventScroll: true });
  return true;
};
