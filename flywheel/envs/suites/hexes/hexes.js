"use strict";
// Hexagon board: pieces of hexagons, lines in three directions clear. The rules are those of `placing.js`.
// A cell is [q, r]: r its row from the middle one, q its place along the row, each row half a cell further to the right.

const { side } = config.params; // cells along an edge of the board
const far = side - 1;
const EDGE = 0.3; // units around the board
const RISE = Math.sqrt(3) / 2; // from a row to the next
const RADIUS = 1 / Math.sqrt(3);
const WIDTH = 2 * side - 1 + 2 * EDGE;
const HEIGHT = 2 * far * RISE + 2 * RADIUS + 2 * EDGE;
const TRAY_HEIGHT = 2.1;
const OLD = "#8490ab";

const hexagon = (x, y, radius, turn = 30) => Array.from({ length: 6 }, (_, n) => {
  const angle = ((60 * n + turn) * Math.PI) / 180;
  return [x + radius * Math.cos(angle), y + radius * Math.sin(angle)].map((value) => Math.round(value * 1e4) / 1e4);
});

const span = Array.from({ length: 2 * side - 1 }, (_, n) => n - far);
const cells = span.flatMap((r) => span.filter((q) => Math.abs(q + r) <= far).map((q) => [q, r]));
const along = (axis) => span.map((n) => cells.flatMap((at, number) => (axis(at) === n ? [number] : [])));
const centre = ([q, r]) => [WIDTH / 2 + q + r / 2, HEIGHT / 2 + r * RISE];

/** The cell under a point: cube coordinates, the one most off rounded from the other two. */
function nearest([x, y]) {
  const r = (y - HEIGHT / 2) / RISE;
  const q = x - WIDTH / 2 - r / 2;
  const cube = [q, r, -q - r];
  const near = cube.map(Math.round);
  const off = cube.map((value, axis) => Math.abs(value - near[axis]));
  if (off[0] > off[1] && off[0] > off[2]) return [-near[1] - near[2], near[1]];
  return off[1] > off[2] ? [near[0], -near[0] - near[2]] : [near[0], near[1]];
}

function cell(x, y, fill, scale, parent) {
  area(hexagon(x, y, 0.93 * RADIUS * scale), { fill, stroke: "#00000040", width: 0.07 * scale, parent });
  const shine = hexagon(x, y, 0.66 * RADIUS * scale);
  const style = { stroke: fill === OLD ? "#ffffff30" : "#ffffff80", width: 0.09 * scale, parent };
  line([shine[3], shine[4], shine[5]], style);
}

placePieces({
  cells,
  lines: [...along(([, r]) => r), ...along(([q]) => q), ...along(([q, r]) => q + r)],
  centre,
  nearest,
  cell,
  ground: () => {
    area(hexagon(WIDTH / 2, HEIGHT / 2, far + 0.76, 0), {
      fill: "#39425a", stroke: "#39425a", width: 0.2, "stroke-linejoin": "round",
    });
    for (const at of cells) area(hexagon(...centre(at), 0.95 * RADIUS), { fill: "#dde4f1" });
  },
  slots: [0, 1, 2].map((slot) => [(slot * WIDTH) / 3, HEIGHT + 0.1, WIDTH / 3, TRAY_HEIGHT]),
  scale: 0.5,
  old: OLD,
});
