"use strict";
// Lasers: drag mirrors that are not fixed, click mirrors to turn them. `rules.py` has the same rules.

const { cols, rows, walls, sources, targets, mirrors } = config.params;
const STEPS = { up: [0, -1], right: [1, 0], down: [0, 1], left: [-1, 0] };
const LIGHT = { red: "#ff5a52", blue: "#59a8ff" };
const SIGN = { red: "heart", blue: "moon" }; // a beam's targets have the sign of its laser

const at = (places, x, y) => places.find((place) => place.x === x && place.y === y);
const inside = (x, y) => x >= 0 && y >= 0 && x < cols && y < rows;
const stops = (x, y) => walls.some((wall) => wall[0] === x && wall[1] === y) || Boolean(at(sources, x, y));

/** The cells that a beam crosses, with the side that it leaves each by. */
function beam(state, { x, y, way }) {
  let [dx, dy] = STEPS[way];
  const crossed = [];
  for (;;) {
    [x, y] = [x + dx, y + dy];
    if (!inside(x, y) || stops(x, y)) return { crossed, end: [x - dx / 2, y - dy / 2] };
    const mirror = at(state.mirrors, x, y);
    if (mirror) [dx, dy] = mirror.lie === "/" ? [-dy, -dx] : [dy, dx];
    crossed.push([x, y]);
  }
}

/** Targets that a beam of their colour crosses. */
function hit(state) {
  const lit = sources.map((source) => [source.colour, beam(state, source).crossed]);
  return targets.filter(({ x, y, colour: wanted }) =>
    lit.some(([colour, cells]) => colour === wanted && cells.some((cell) => cell[0] === x && cell[1] === y)));
}

function turn({ col, row }) {
  const number = game.state.mirrors.findIndex((mirror) => mirror.x === col && mirror.y === row);
  if (number < 0) return;
  game.move((state) => { state.mirrors[number].lie = state.mirrors[number].lie === "/" ? "\\" : "/"; });
}

function put(from, { col, row }) {
  const number = game.state.mirrors.findIndex((mirror) => mirror.x === from.col && mirror.y === from.row);
  if (number < 0 || game.state.mirrors[number].fixed || !inside(col, row)) return;
  if (stops(col, row) || at(targets, col, row) || at(game.state.mirrors, col, row)) return;
  game.move((state) => Object.assign(state.mirrors[number], { x: col, y: row }));
}

const nodes = []; // of the mirrors

function drawMirror({ x, y, lie, fixed }, i) {
  const node = group({ look: fixed ? "" : "movable", name: `mirror ${i}` });
  nodes[i] = node;
  const [cx, cy, r] = [x + 0.5, y + 0.5, 0.27];
  if (fixed) {
    rect(x + 0.1, y + 0.1, 0.8, 0.8, { fill: "#5a6580", stroke: "#10141f", r: 0.06, parent: node });
    for (const [u, v] of [[0.2, 0.2], [0.8, 0.2], [0.2, 0.8], [0.8, 0.8]]) {
      disc(x + u, y + v, 0.05, { fill: "#10141f", parent: node });
    }
  } else {
    disc(cx, cy, 0.42, { fill: "#dbe6f7", stroke: "#10141f", parent: node });
  }
  const ends = lie === "/" ? [[cx - r, cy + r], [cx + r, cy - r]] : [[cx - r, cy - r], [cx + r, cy + r]];
  line(ends, { stroke: "#10141f", width: 0.22, parent: node });
  line(ends, { stroke: "#8fe3ff", width: 0.12, parent: node });
}

function drawBeam(state, source) {
  const { crossed, end } = beam(state, source);
  const points = [[source.x, source.y], ...crossed, end].map(([x, y]) => [x + 0.5, y + 0.5]);
  line(points, { stroke: `${LIGHT[source.colour]}55`, width: 0.26 });
  line(points, { stroke: LIGHT[source.colour], width: 0.1 });
}

function drawLaser({ x, y, way, colour: kind }) {
  const [dx, dy] = STEPS[way];
  rect(x + 0.36 + 0.36 * dx, y + 0.36 + 0.36 * dy, 0.28, 0.28, { fill: LIGHT[kind], stroke: "#10141f" });
  rect(x + 0.12, y + 0.12, 0.76, 0.76, { fill: kind, stroke: "#10141f", r: 0.14, name: `${kind} laser` });
  symbol(SIGN[kind], x + 0.5, y + 0.5, 0.46);
}

function drawTarget({ x, y, colour: kind }, reached) {
  if (reached) disc(x + 0.5, y + 0.5, 0.48, { fill: `${LIGHT[kind]}88` });
  disc(x + 0.5, y + 0.5, 0.36, {
    fill: reached ? kind : "#1c2334", stroke: LIGHT[kind], width: 0.09, name: `${kind} target`,
  });
  symbol(SIGN[kind], x + 0.5, y + 0.5, 0.4, { fill: reached ? "white" : LIGHT[kind] });
}

function drawBoard(state) {
  for (let y = 0; y < rows; y += 1) {
    for (let x = 0; x < cols; x += 1) rect(x + 0.03, y + 0.03, 0.94, 0.94, { fill: "#2c364d", r: 0.06 });
  }
  for (const [x, y] of walls) {
    rect(x, y, 1, 1, { fill: "#79839c", r: 0.06 });
    rect(x + 0.07, y + 0.07, 0.86, 0.4, { fill: "#a3acc2", r: 0.08 });
  }
  const reached = hit(state);
  state.mirrors.forEach(drawMirror);
  sources.forEach((source) => drawBeam(state, source));
  targets.forEach((target) => drawTarget(target, reached.includes(target)));
  sources.forEach(drawLaser);
}

openBoard(cols, rows, { colour: "#1c2334", border: 0.12 });
onPointer({
  click: turn,
  drop: put,
  lift: ({ col, row }) => {
    const number = game.state.mirrors.findIndex((mirror) => mirror.x === col && mirror.y === row && !mirror.fixed);
    return number < 0 ? null : nodes[number];
  },
});
startGame({
  state: { mirrors },
  draw: drawBoard,
  won: (state) => hit(state).length === targets.length,
  score: (state) => hit(state).length / targets.length,
  label: (state) => `Targets ${hit(state).length}/${targets.length}`,
});
