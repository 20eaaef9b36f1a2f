// Native controls. A picker of the browser's is a window of its own, which nobody draws here: the observer, told of
// one, closes it and shows another (`pickers.py`). `:open` tells; a shadow tree is asked where the focus is in it.
const OPEN = "select:open, input:open", LISTED = "input[list]:not(:disabled, :read-only)";
const HOSTS = "article, aside, blockquote, div, footer, h1, h2, h3, h4, h5, h6, header, main, nav, p, section, span";
const focusIn = property(ShadowRoot.prototype, "activeElement");
const tagOf = property(E.prototype, "localName"), includes = uncurried(String.prototype.includes);
let wanted = null; // asked for its picker, by script: it may be anywhere
for (const prototype of [HTMLInputElement.prototype, HTMLSelectElement.prototype]) {
  const show = prototype.showPicker;
  if (show) replace(prototype, "showPicker", { showPicker(...args) {
    apply(show, this, args);
    wanted = this;
  } }.showPicker);
}
// What a field lacks, a browser tells in a bubble that fades in by the display's own time: it is told otherwise too.
// The bubble belongs to the first field that the page leaves to the browser; one that is only asked has none.
let complaint = null, checking = 0;
const focus = uncurried(HTMLElement.prototype.focus);
const onInvalid = (event) => {
  const node = targetOf(event);
  if (!event.isTrusted || checking) return;
  listen(node, "invalid", (last) => {
    if (last !== event || prevented(event)) return;
    cancel(event);
    if (complaint) return;
    focus(node);
    if (matches(node, ":focus")) complaint = node;
  }, { once: true });
};
for (const kind of [HTMLFormElement, HTMLInputElement, HTMLSelectElement, HTMLTextAreaElement, HTMLButtonElement]) {
  const check = kind.prototype.checkValidity;
  replace(kind.prototype, "checkValidity", { checkValidity() {
    checking += 1;
    try { return apply(check, this, []); } finally { checking -= 1; }
  } }.checkValidity);
}
const drawn = (node) => // by the page itself
  style(node).appearance === "base-select" && style(node, "::picker(select)").appearance === "base-select";
const opened = (node) => matches(node, OPEN) && (tagOf(node) === "input" || !drawn(node));
const focused = (root) => {
  let node = active(root), tree = null;
  while (node && (tree = treeIn(node)) && focusIn(tree)) node = focusIn(tree);
  return node;
};
// An element that takes no focus itself has it in a tree that its document was sent with, closed to all scripts.
const veiled = (node) => (includes(tagOf(node), "-") || matches(node, HOSTS)) && !treeIn(node)
  && attribute(node, "tabindex") === null && attribute(node, "contenteditable") === null;
/** 3: a picker is open, 2: the field that has the focus lacks something, 1: it suggests what to enter, 0: nothing. */
const picking = () => {
  let found = strange;
  if (wanted && opened(wanted)) return 3;
  for (let r = 0; r < core.realms.length; r++) {
    const shown = reached(core.realms[r]);
    if (!shown) continue;
    const nodes = find(shown, OPEN), node = focused(shown);
    for (let i = 0; i < nodes.length; i++) if (opened(nodes[i])) return 3;
    if (node && (opened(node) || veiled(node))) return 3;
    if (node && matches(node, LISTED)) found = max(found, 1);
  }
  return complaint && matches(complaint, ":focus:invalid") ? max(found, 2) : found;
};
