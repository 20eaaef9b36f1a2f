"use strict";
// Power grid: a click turns a piece a quarter to the right. A piece is the sum of the sides that its wires go to.
// `rules.py` has the same rules.

const { cols, rows, source, pieces } = config.params;
const SIDES = [[1, 0, -1, 4], [2, 1, 0, 8], [4, 0, 1, 1], [8, -1, 0, 2]]; // side, step there, the side opposite
const EDGE = "#141a28";
const LAMPS = [];
pieces.forEach((row, y) => row.forEach((piece, x) => {
  if ([1, 2, 4, 8].includes(piece) && !(x === source[0] && y === source[1])) LAMPS.push([x, y]);
}));

/** Which cells a line joins to the power station, as rows of booleans. */
function lit(state) {
  const on = pieces.map((row) => row.map(() => false));
  const found = [source];
  on[source[1]][source[0]] = true;
  for (const [x, y] of found) {
    for (const [side, dx, dy, opposite] of SIDES) {
      const [u, v] = [x + dx, y + dy];
      if (u < 0 || v < 0 || u >= cols || v >= rows || on[v][u]) continue;
      if (!(state.pieces[y][x] & side) || !(state.pieces[v][u] & opposite)) continue;
      on[v][u] = true;
      found.push([u, v]);
    }
  }
  return on;
}

function lampsLit(state) {
  const on = lit(state);
  return LAMPS.filter(([x, y]) => on[y][x]).length;
}

function turn({ col, row, inside }) {
  if (!inside) return;
  game.move((state) => {
    const piece = state.pieces[row][col];
    state.pieces[row][col] = ((piece << 1) & 15) | (piece >> 3);
  });
}

function drawWires(piece, x, y, stroke, width) {
  for (const [side, dx, dy] of SIDES) {
    if (piece & side) line([[x + 0.5, y + 0.5], [x + 0.5 + 0.45 * dx, y + 0.5 + 0.45 * dy]], { stroke, width });
  }
}

/** What stands on the wires: the power station, a lamp, or nothing. */
function drawTop(piece, x, y, on) {
  const [cx, cy] = [x + 0.5, y + 0.5];
  if (x === source[0] && y === source[1]) {
    rect(x + 0.2, y + 0.2, 0.6, 0.6, { fill: "orange", stroke: EDGE, r: 0.1, name: "power station" });
    symbol("bolt", cx, cy, 0.5);
  } else if ([1, 2, 4, 8].includes(piece)) {
    if (on) disc(cx, cy, 0.42, { fill: "#fdd83555" });
    disc(cx, cy, 0.3, { fill: on ? "#fff3b0" : "#aab3c7", stroke: EDGE });
    symbol("lamp", cx, cy, 0.42, { fill: on ? "#e08600" : "#4b556c" });
  }
}

function drawBoard(state) {
  const on = lit(state);
  const each = (draw) => state.pieces.forEach((row, y) => row.forEach((piece, x) => draw(piece, x, y, on[y][x])));
  each((piece, x, y, power) => rect(x + 0.03, y + 0.03, 0.94, 0.94, { fill: power ? "#3d4a6b" : "#333d57", r: 0.12 }));
  each((piece, x, y) => drawWires(piece, x, y, EDGE, 0.3)); // all edges first: lines that meet have no seam
  each((piece, x, y, power) => drawWires(piece, x, y, power ? "yellow" : "#7f8aa3", 0.18));
  each(drawTop);
}

openBoard(cols, rows, { colour: "#232b40", border: 0.14 });
onPointer({ click: turn });
startGame({
  state: { pieces },
  draw: drawBoard,
  won: (state) => lampsLit(state) === LAMPS.length,
  score: (state) => lampsLit(state) / LAMPS.length,
  label: (state) => `Lamps ${lampsLit(state)}/${LAMPS.length}`,
});
