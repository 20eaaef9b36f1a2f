"use strict";
// Loops: a click turns a piece a quarter to the right. A piece is the sum of the sides that its ends go to.
// `rules.py` has the same rules.

const { cols, rows, pieces } = config.params;
const SIDES = [[1, 0, -1, 4], [2, 1, 0, 8], [4, 0, 1, 1], [8, -1, 0, 2]]; // side, step there, the side opposite
const END = [1, 2, 4, 8]; // pieces with one end
const COUNT = pieces.flat().filter((piece) => piece).length;

/** Whether the end of a piece on one side meets one of its neighbour's. */
function meets(state, x, y, [side, dx, dy, opposite]) {
  const next = (state.pieces[y + dy] || [])[x + dx] || 0;
  return Boolean(state.pieces[y][x] & side) && Boolean(next & opposite);
}

/** Whether no end of a piece is open. */
const joined = (state, x, y) => SIDES.every((one) => !(state.pieces[y][x] & one[0]) || meets(state, x, y, one));

function closed(state) {
  let count = 0;
  state.pieces.forEach((row, y) => row.forEach((piece, x) => { if (piece && joined(state, x, y)) count += 1; }));
  return count;
}

const AT_START = closed({ pieces });

function turn({ col, row, inside }) {
  if (!inside || !game.state.pieces[row][col]) return;
  game.move((state) => {
    const piece = state.pieces[row][col];
    state.pieces[row][col] = ((piece << 1) & 15) | (piece >> 3);
  });
}

/** The line of a piece around (0, 0): straight through, round a corner, or to the ring of an end. */
function shapeOf(piece) {
  const at = (side) => SIDES.find(([one]) => one === side).slice(1, 3).map((step) => 0.52 * step).join(" ");
  if (END.includes(piece)) return `M${at(piece)}L0 0`;
  const lines = [[1, 4], [2, 8]].filter(([a, b]) => piece & a && piece & b).map(([a, b]) => `M${at(a)}L${at(b)}`);
  const corners = [[1, 2], [2, 4], [4, 8], [8, 1]].filter(([a, b]) => piece & a && piece & b);
  if (piece !== 15) lines.push(...corners.map(([a, b]) => `M${at(a)}Q0 0 ${at(b)}`));
  return lines.join("");
}

function drawLine(state, x, y, dark) {
  const piece = state.pieces[y][x];
  const [edge, fill] = joined(state, x, y) ? ["#0c5c63", "#1fa7a0"] : ["#7a3c10", "orange"];
  path(shapeOf(piece), {
    stroke: dark ? edge : fill, width: dark ? 0.32 : 0.22, transform: `translate(${x + 0.5} ${y + 0.5})`,
    "stroke-linejoin": "round",
  });
  if (dark || !END.includes(piece)) return;
  disc(x + 0.5, y + 0.5, 0.25, { fill, stroke: edge, width: 0.05 });
  disc(x + 0.5, y + 0.5, 0.1, { fill: "#fbf7ee", stroke: edge, width: 0.05 });
}

function drawBoard(state) {
  state.pieces.forEach((row, y) => row.forEach((piece, x) => {
    rect(x + 0.02, y + 0.02, 0.96, 0.96, { fill: piece ? "#fbf7ee" : "#ece4d3", r: 0.1 });
  }));
  for (const dark of [true, false]) { // all edges first: lines that meet have no seam
    state.pieces.forEach((row, y) => row.forEach((piece, x) => { if (piece) drawLine(state, x, y, dark); }));
  }
  state.pieces.forEach((row, y) => row.forEach((piece, x) => { // open ends stand out
    for (const one of SIDES) {
      if (!(piece & one[0]) || meets(state, x, y, one)) continue;
      disc(x + 0.5 + 0.42 * one[1], y + 0.5 + 0.42 * one[2], 0.1, { fill: "white", stroke: "red", width: 0.06 });
    }
  }));
}

openBoard(cols, rows, { colour: "#dccfb5", border: 0.12 });
onPointer({ click: turn });
startGame({
  state: { pieces },
  draw: drawBoard,
  won: (state) => closed(state) === COUNT,
  score: (state) => Math.max(0, (closed(state) - AT_START) / (COUNT - AT_START)), // of those open at the start
  label: (state) => `Closed ${closed(state)}/${COUNT}`,
});
