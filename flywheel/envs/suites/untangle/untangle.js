"use strict";
// Untangle: drag knots to free dots. `rules.py` has the same rules.

const { side, knots, edges, names } = config.params;

/** Which way it turns from p over q to r: positive, 0 (on a line), negative. */
const turn = (p, q, r) => Math.sign((q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0]));

/** Whether r lies on the line from p to q. */
const on = (p, q, r) => turn(p, q, r) === 0 &&
  [0, 1].every((i) => Math.min(p[i], q[i]) <= r[i] && r[i] <= Math.max(p[i], q[i]));

/** Whether two lines get in each other's way: cross, touch, or from a knot that they share lie on each other. */
function meet([a, b], [c, d], places) {
  const [p, q, r, s] = [a, b, c, d].map((knot) => places[knot]);
  const touches = [on(p, q, r), on(p, q, s), on(r, s, p), on(r, s, q)].filter(Boolean).length;
  if ([c, d].includes(a) || [c, d].includes(b)) return touches > 2;
  return touches > 0 || (turn(p, q, r) * turn(p, q, s) < 0 && turn(r, s, p) * turn(r, s, q) < 0);
}

/** Pairs of lines, by number, that get in each other's way. */
function crossings(places) {
  const found = [];
  for (let i = 0; i < edges.length; i += 1) {
    for (let k = 0; k < i; k += 1) if (meet(edges[i], edges[k], places)) found.push([i, k]);
  }
  return found;
}

const AT_START = crossings(knots).length;
const knotAt = ({ col, row }) => game.state.knots.findIndex(([x, y]) => x === col && y === row);

function drop(from, to) {
  const knot = knotAt(from);
  if (knot < 0 || !to.inside || knotAt(to) >= 0) return;
  game.move((state) => { state.knots[knot] = [to.col, to.row]; });
}

const middle = ([x, y]) => [x + 0.5, y + 0.5];
const nodes = []; // of the knots
const lines = []; // of the edges

function drawBoard(state) {
  for (let y = 0; y < side; y += 1) {
    for (let x = 0; x < side; x += 1) disc(x + 0.5, y + 0.5, 0.07, { fill: "#b9c4d6" });
  }
  const crossing = new Set(crossings(state.knots).flat());
  const ends = edges.map(([a, b]) => [middle(state.knots[a]), middle(state.knots[b])]);
  ends.forEach((points) => line(points, { stroke: "#f4f7fc", width: 0.2 }));
  ends.forEach((points, i) => {
    const tangled = crossing.has(i);
    lines[i] = line(points, { stroke: tangled ? "red" : "#2b8a8a", width: tangled ? 0.1 : 0.13 });
  });
  state.knots.forEach((place, i) => {
    const [x, y] = middle(place);
    const tangled = edges.some((edge, k) => edge.includes(i) && crossing.has(k));
    const node = group({ look: "movable", name: `knot ${names[i]}` });
    disc(x, y, 0.34, { fill: tangled ? "orange" : "#2b8a8a", stroke: "#1b1f27", width: 0.05, parent: node });
    symbol(names[i], x, y, 0.42, { fill: tangled ? "#2a1600" : "white", parent: node });
    nodes[i] = node;
  });
}

openBoard(side, side, { colour: "#eef2f9", border: 0.1 });
onPointer({ drop, lift: (from) => nodes[knotAt(from)] || null });
addEventListener("pointermove", (event) => { // the lines of a dragged knot go with it
  const knot = held && held.node ? nodes.indexOf(held.node) : -1;
  if (knot < 0) return;
  const { x, y } = pointed(event);
  edges.forEach((edge, i) => {
    if (!edge.includes(knot)) return;
    const ends = edge.map((end) => (end === knot ? [x, y] : middle(game.state.knots[end])));
    lines[i].setAttribute("points", ends.map((end) => end.join(",")).join(" "));
  });
});
startGame({
  state: { knots },
  draw: drawBoard,
  won: (state) => crossings(state.knots).length === 0,
  score: (state) => Math.max(0, 1 - crossings(state.knots).length / AT_START),
  label: (state) => `Crossings ${crossings(state.knots).length}`,
});
