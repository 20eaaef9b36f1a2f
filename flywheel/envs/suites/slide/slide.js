"use strict";
// Sliding blocks: each slides along its own direction as far as it is free. `rules.py` has the same rules.

const { size, gap, blocks } = config.params;
const EDGE = 0.5; // units of the frame around the tray
const low = gap === "left" || gap === "up"; // the gap is at the low end of the key's lane
const goal = low ? 0 : size - blocks[0].length;

/** The cells [x, y] of a block whose end is at `at`. */
const cells = ({ x, y, length, across }, at) =>
  Array.from({ length }, (_, n) => (across ? [at + n, y] : [x, at + n]));

/** The lowest and highest place that a block can slide to. */
function free(state, number) {
  const taken = new Set(blocks.flatMap((block, i) => (i === number ? [] : cells(block, state.at[i]).map(String))));
  const fits = (at) => at >= 0 && at + blocks[number].length <= size
    && cells(blocks[number], at).every((cell) => !taken.has(String(cell)));
  let [from, to] = [state.at[number], state.at[number]];
  while (fits(from - 1)) from -= 1;
  while (fits(to + 1)) to += 1;
  return [from, to];
}

/** How far a drag takes a block along its direction, in cells, not rounded. */
function slid(state, number, from, to) {
  const wish = blocks[number].across ? to.x - from.x : to.y - from.y;
  const [least, most] = free(state, number);
  return Math.min(Math.max(state.at[number] + wish, least), most) - state.at[number];
}

const grip = (at) => (at.name.startsWith("block ") ? Number(at.name.slice(6)) : -1);

/** Blocks that stand between the key and the gap. */
function inTheWay(at) {
  const [key] = blocks;
  const lane = Array.from({ length: size }, (_, n) => String(key.across ? [n, key.y] : [key.x, n]));
  const ahead = low ? lane.slice(0, at[0]) : lane.slice(at[0] + key.length);
  return blocks.filter((block, i) => i > 0 && cells(block, at[i]).some((cell) => ahead.includes(String(cell)))).length;
}

const start = blocks.map((block) => (block.across ? block.x : block.y));
const won = (state) => state.at[0] === goal;

function drawFrame() {
  const side = size + 2 * EDGE;
  rect(0, 0, side, side, { fill: "#7b4d2a", r: 0.3 });
  rect(0.12, 0.12, side - 0.24, side - 0.24, { fill: "#96623a", r: 0.22 });
  rect(EDGE, EDGE, size, size, { fill: "#f1e2c6", r: 0.08 });
  for (let n = 1; n < size; n += 1) {
    rect(EDGE + n - 0.025, EDGE, 0.05, size, { fill: "#e2cda5" });
    rect(EDGE, EDGE + n - 0.025, size, 0.05, { fill: "#e2cda5" });
  }
  const { x, y, across } = blocks[0];
  const [gx, gy] = across ? [low ? 0 : EDGE + size, EDGE + y] : [EDGE + x, low ? 0 : EDGE + size];
  rect(gx, gy, across ? EDGE : 1, across ? 1 : EDGE, { fill: "#f1e2c6", name: "gap" });
  const turn = { right: 0, down: 90, left: 180, up: 270 }[gap];
  const [cx, cy] = [gx + (across ? EDGE / 2 : 0.5), gy + (across ? 0.5 : EDGE / 2)];
  path("M -0.16 -0.24 L 0.18 0 L -0.16 0.24 Z", { fill: "red", transform: `translate(${cx} ${cy}) rotate(${turn})` });
}

function drawBlock(block, number, at) {
  const out = number === 0 && at === goal ? (low ? -EDGE : EDGE) : 0; // it shows in the gap
  const [x, y] = block.across ? [EDGE + at + out, EDGE + block.y] : [EDGE + block.x, EDGE + at + out];
  const [w, h] = block.across ? [block.length, 1] : [1, block.length];
  const node = group({ name: `block ${number}`, look: "movable" });
  rect(x + 0.05, y + 0.05, w - 0.1, h - 0.1, { r: 0.16, fill: "#00000055", parent: node });
  rect(x + 0.05, y + 0.05, w - 0.1, h - 0.16, { r: 0.16, fill: block.colour, parent: node });
  rect(x + 0.12, y + 0.11, w - 0.24, 0.14, { r: 0.07, fill: "#ffffff66", parent: node });
  if (number === 0) {
    const [cx, cy] = [x + w / 2, y + h / 2];
    const mark = group({ parent: node, transform: block.across ? "" : `rotate(90 ${cx} ${cy})` });
    symbol("key", cx, cy, 1.15, { fill: "#ffffff", parent: mark });
    return;
  }
  for (const side of [-1, 1]) { // grooves: the direction that it slides in
    const groove = block.across
      ? [[x + 0.42, y + 0.5 + 0.13 * side], [x + w - 0.42, y + 0.5 + 0.13 * side]]
      : [[x + 0.5 + 0.13 * side, y + 0.42], [x + 0.5 + 0.13 * side, y + h - 0.42]];
    line(groove, { stroke: "#00000040", width: 0.08, parent: node });
  }
}

openBoard(size + 2 * EDGE, size + 2 * EDGE);
onPointer({
  lift: (from) => (grip(from) < 0 ? null : board.svg.querySelector(`[data-el="block ${grip(from)}"]`)),
  follow: (from, at) => {
    const way = slid(game.state, grip(from), from, at);
    return blocks[grip(from)].across ? [way, 0] : [0, way];
  },
  drop: (from, to) => {
    const number = grip(from);
    const way = number < 0 ? 0 : Math.round(slid(game.state, number, from, to));
    if (way !== 0) game.move((state) => { state.at[number] += way; });
  },
});
startGame({
  state: { at: start },
  draw: (state) => {
    drawFrame();
    blocks.forEach((block, number) => drawBlock(block, number, state.at[number]));
  },
  won,
  score: (state) => (won(state) ? 1 : Math.max(0, 1 - (inTheWay(state.at) + 1) / (inTheWay(start) + 1))),
  label: (state) => (won(state) ? "Free" : `In the way ${inTheWay(state.at)}`),
});
