// One picker of any kind, shown at its control.
// -- what a field lacks: told, and gone with the next press -----------------------------------------------------------
const bubble = (model) => ({
  node: make("div", "bubble", "", make("b", "", "!"), make("span", "", model.text)), key() {}, placed() {}, keep() {},
});

// -- all of them ---------------------------------------------------------------------------------------------------
const KINDS = {
  list, bubble, suggestions: list, date: days, week: days, month: days, time: times, "datetime-local": both, color: colour,
};
const place = (node, anchor, rtl) => {
  node.style.minWidth = node.firstChild.className === "rows" ? `${anchor.w}px` : "";
  const below = innerHeight - anchor.y - anchor.h, above = anchor.y, rows = node.querySelector(":scope > .rows");
  const up = node.offsetHeight > below && above > below;
  if (rows) {
    const room = max(up ? above : below, min(innerHeight, 60)), line = rows.firstChild?.offsetHeight ?? 20;
    rows.style.maxHeight = `${min(20 * line, room - 2)}px`;
    node.style.maxWidth = `${innerWidth}px`;
  } else node.style.zoom = min(1, innerWidth / node.offsetWidth, innerHeight / node.offsetHeight);
  const zoom = Number(node.style.zoom || 1), w = node.getBoundingClientRect().width, h = node.getBoundingClientRect().height;
  const x = max(0, min(rtl ? anchor.x + anchor.w - w : anchor.x, innerWidth - w));
  const y = max(0, min(up ? anchor.y - h : anchor.y + anchor.h, innerHeight - h));
  Object.assign(node.style, { left: `${x / zoom}px`, top: `${y / zoom}px` });
};
/** Draw a control's picker, or the same one again after its page has moved on. anchor: the control's box. */
const show = (model, anchor) => {
  if (shown && JSON.stringify([model, anchor]) === shown.drawn) return;
  const focus = document.activeElement?.localName === "input";
  if (shown && model.kind === "color" && focus && shown.model.kind === "color") { // a field is being typed in
    shown.drawn = JSON.stringify([model, anchor]);
    return;
  }
  const same = shown && shown.model.kind === model.kind && JSON.stringify(shown.model.rows) === JSON.stringify(model.rows);
  const part = KINDS[model.kind](model, same ? shown.part.keep() : null);
  const node = make("div", "", "", part.node);
  node.id = "picker";
  document.body.replaceChildren(node);
  place(node, anchor, model.rtl);
  part.placed();
  shown = { model, node, part, drawn: JSON.stringify([model, anchor]) };
};
const hide = () => {
  shown = null;
  said = { value: null, over: false, on: false };
  document.body.replaceChildren();
};
/** The part of the screen that it covers, or null. */
const box = () => {
  if (!shown) return null;
  const area = shown.node.getBoundingClientRect();
  return { x: floor(area.x), y: floor(area.y), w: Math.ceil(area.right) - floor(area.x), h: Math.ceil(area.bottom) - floor(area.y) };
};
/** A turn of the wheel by half of what is seen. Done by hand: a window that is new may lose its first ones. */
const scroll = (x, y, way) => {
  const list = document.elementFromPoint(x, y)?.closest(".rows, .column");
  if (list) list.scrollTop += way * list.clientHeight / 2;
};
const take = () => {
  const told = said;
  said = { value: null, over: false, on: false };
  return told;
};
addEventListener("keydown", (event) => {
  if (!shown || shown.part.key(event) === false) return;
  event.preventDefault();
});
addEventListener("contextmenu", (event) => event.preventDefault());
window.pickers = { show, hide, box, scroll, take };
