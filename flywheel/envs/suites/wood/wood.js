"use strict";
// Wood blocks: squares on a square board, full rows and columns clear. The rules are those of `placing.js`.

const { size } = config.params;
const EDGE = 0.25; // units of the frame around the board
const SIDE = 0.3 * size + 0.6; // of the tray

const span = Array.from({ length: size }, (_, n) => n);

function square(x, y, fill, scale, parent) {
  const half = 0.47 * scale;
  const old = fill === OLD;
  rect(x - half, y - half, 2 * half, 2 * half, { r: 0.12 * scale, fill, parent });
  rect(x - half, y - half, 2 * half, 2 * half, {
    r: 0.12 * scale, fill: "none", stroke: "#00000038", width: 0.07 * scale, parent,
  });
  if (!old) rect(x - 0.34 * scale, y - 0.36 * scale, 0.68 * scale, 0.12 * scale, { r: 0.06 * scale, fill: "#ffffff70", parent });
  else {
    for (const dy of [-0.18, 0.06, 0.26]) { // the grain of the wood
      rect(x - 0.32 * scale, y + dy * scale, 0.64 * scale, 0.05 * scale, { fill: "#7b4d2a60", parent });
    }
  }
}

const OLD = "#bd8a54";
const edge = size + 2 * EDGE;
placePieces({
  cells: span.flatMap((y) => span.map((x) => [x, y])),
  lines: [...span.map((y) => span.map((x) => y * size + x)), ...span.map((x) => span.map((y) => y * size + x))],
  centre: ([x, y]) => [EDGE + x + 0.5, EDGE + y + 0.5],
  nearest: ([x, y]) => [Math.round(x - EDGE - 0.5), Math.round(y - EDGE - 0.5)],
  cell: square,
  ground: () => {
    rect(0, 0, edge, edge, { fill: "#7b4d2a", r: 0.2 });
    rect(EDGE, EDGE, size, size, { fill: "#f1e2c6" });
    for (let n = 1; n < size; n += 1) {
      rect(EDGE + n - 0.02, EDGE, 0.04, size, { fill: "#dcc396" });
      rect(EDGE, EDGE + n - 0.02, size, 0.04, { fill: "#dcc396" });
    }
  },
  slots: [0, 1, 2].map((slot) => [edge + 0.15, (slot * edge) / 3, SIDE, edge / 3]),
  scale: (0.3 * size) / 4,
  old: OLD,
});
