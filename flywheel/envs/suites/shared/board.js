"use strict";
// The board: an SVG in units of a cell, as large as fits; what is drawn on it; mouse, touch and keys.

const SVG = "http://www.w3.org/2000/svg";
const AREA = { w: 13.4, h: 12.2 }; // rem that a board may fill
const CLICK = 0.3; // units that a click may slip before it is a drag
const board = { svg: null, w: 0, h: 0 };

/** Open a board of `w` x `h` units. `colour`: of its ground, none where left out. `border`: units around it. */
function openBoard(w, h, { colour = "", border = 0 } = {}) {
  const scale = Math.min(AREA.w / (w + 2 * border), AREA.h / (h + 2 * border));
  const node = document.createElementNS(SVG, "svg");
  node.setAttribute("viewBox", `0 0 ${w} ${h}`);
  node.style.width = `${w * scale}rem`;
  node.style.height = `${h * scale}rem`;
  document.getElementById("board").append(node);
  Object.assign(board, { svg: node, w, h, ground: { colour, border } });
}

function clearBoard() {
  board.svg.replaceChildren();
  const { colour, border } = board.ground;
  if (colour) rect(-border, -border, board.w + 2 * border, board.h + 2 * border, { fill: colour, r: border });
}

/** Where the board is: `x`, `y`, `w`, `h` as fractions of the viewport, `cols` and `rows` in units. */
function frame() {
  const box = board.svg.getBoundingClientRect();
  const share = (value, whole) => Math.round((value / whole) * 1e5) / 1e5;
  return {
    x: share(box.x, innerWidth), y: share(box.y, innerHeight), w: share(box.width, innerWidth),
    h: share(box.height, innerHeight), cols: board.w, rows: board.h,
  };
}

// -- drawing ----------------------------------------------------------------------------------------------------------
// Every helper takes units of the board and `style`: fill and stroke (names of the palette or CSS colours), width (of
// the stroke), look (CSS classes: selected, blocked, faded, movable), name (makes it known to observers as an
// element), parent (a group; else the board). Each returns its node.

const colour = (name) => config.colours[name] || name;
const ink = (fill) => (["yellow", "white"].includes(fill) ? "#222222" : "#ffffff");

function shape(tag, attributes, { fill = "none", stroke, width = 0.06, look = "", name, parent, ...more } = {}) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries({ ...attributes, ...more })) node.setAttribute(key, value);
  node.setAttribute("fill", colour(fill));
  if (stroke) {
    node.setAttribute("stroke", colour(stroke));
    node.setAttribute("stroke-width", width);
  }
  if (look) node.setAttribute("class", look);
  if (name) node.dataset.el = name;
  (parent || board.svg).append(node);
  return node;
}

/** `r`: the corners' radius. */
const rect = (x, y, width, height, { r = 0, ...style } = {}) => shape("rect", { x, y, width, height, rx: r }, style);
const disc = (x, y, r, style) => shape("circle", { cx: x, cy: y, r }, style);
/** `points`: [[x, y], ...]. */
const line = (points, style) => shape("polyline", {
  points: points.map((point) => point.join(",")).join(" "), "stroke-linecap": "round", "stroke-linejoin": "round",
}, style);
const area = (points, style) => shape("polygon", { points: points.map((point) => point.join(",")).join(" ") }, style);
const path = (d, style) => shape("path", { d }, style);
const group = (style = {}) => shape("g", {}, { fill: "inherit", ...style });

/** Words around (x, y); `size` is their height. */
function text(x, y, words, { size = 0.5, fill = "#1b1f27", ...style } = {}) {
  const node = shape("text", { x, y }, { fill, ...style });
  node.style.fontSize = `${size}px`;
  node.textContent = words;
  return node;
}

/** An icon of the common look around (x, y), `size` wide. */
const symbol = (icon, x, y, size, style = {}) => shape("path", {
  d: config.icons[icon], transform: `translate(${x - size / 2} ${y - size / 2}) scale(${size / 24})`,
  "fill-rule": "evenodd",
}, { fill: "#ffffff", ...style, look: `plain ${style.look || ""}` });

/** A piece on the cell (col, row): a rounded square with a symbol or words on it. `size`: share of the cell. */
function tile(col, row, fill, { symbol: icon, words, size = 0.88, look, name, parent, stroke, span = [1, 1] } = {}) {
  const node = group({ look, name, parent });
  const gap = (1 - size) / 2;
  rect(col + gap, row + gap, span[0] - 2 * gap, span[1] - 2 * gap, { r: 0.14, fill, stroke, parent: node });
  const [x, y] = [col + span[0] / 2, row + span[1] / 2];
  if (icon) symbol(icon, x, y, 0.62 * size, { fill: ink(fill), parent: node });
  if (words !== undefined) {
    const wide = String(words).length;
    text(x, y, words, { size: wide < 3 ? 0.5 : 1.3 / (wide + 0.2), fill: ink(fill), parent: node });
  }
  return node;
}

// -- input ------------------------------------------------------------------------------------------------------------
let held = null; // { from, node }: what the pointer has pressed, and the piece that follows it

/** Where the pointer is: x and y in units, its cell, whether it is on the board, the named piece under it. */
function pointed(event) {
  const box = board.svg.getBoundingClientRect();
  const x = ((event.clientX - box.x) / box.width) * board.w;
  const y = ((event.clientY - box.y) / box.height) * board.h;
  const named = event.target instanceof Element ? event.target.closest("[data-el]") : null;
  return {
    x, y, col: Math.floor(x), row: Math.floor(y), inside: x >= 0 && y >= 0 && x < board.w && y < board.h,
    name: named ? named.dataset.el : "",
  };
}

function dropHeld() {
  held = null;
}

/**
 * Mouse and touch. `click(at)`: pressed and released in one place. `drop(from, to)`: dragged there. `lift(from)`: the
 * node that follows the pointer meanwhile (left out or null: none). `follow(from, at)`: [dx, dy] that it moves by, where
 * it is not free to go everywhere. Nothing is called once the game is over.
 */
function onPointer({ click, drop, lift, follow }) {
  addEventListener("pointerdown", (event) => {
    if (game.over || event.button !== 0) return;
    event.preventDefault();
    const from = pointed(event);
    const node = lift ? lift(from) : null;
    held = { from, node, base: (node && node.getAttribute("transform")) || "" };
    if (node) {
      node.parentNode.append(node); // above the others
      node.classList.add("held");
    }
  });
  addEventListener("pointermove", (event) => {
    if (!held || !held.node) return;
    const at = pointed(event);
    const [dx, dy] = follow ? follow(held.from, at) : [at.x - held.from.x, at.y - held.from.y];
    held.node.setAttribute("transform", `translate(${dx} ${dy}) ${held.base}`);
  });
  addEventListener("pointerup", (event) => {
    if (!held) return;
    const { from } = held;
    held = null;
    const to = pointed(event);
    const slipped = Math.hypot(to.x - from.x, to.y - from.y) >= CLICK;
    if (slipped && drop) drop(from, to);
    else if (!slipped && click) click(from);
    game.draw(); // what was lifted and put nowhere goes back
  });
  addEventListener("pointercancel", () => {
    held = null;
    game.draw();
  });
}

/** Keys by their DOM name: `onKeys({ ArrowLeft: () => ... })`. Nothing is called once the game is over. */
function onKeys(keys) {
  addEventListener("keydown", (event) => {
    if (game.over || !Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  });
}
