"use strict";
// Gem merge: two equal neighbours make the next number, others fall. `rules.py` has the same rules.

const { side, columns, coming, target } = config.params; // columns: numbers from below
const WILD = 0;
const LOW = 3; // the highest number that a star fits
const GAP = 0.15; // units around the board
const SHOWN = 3; // gems to come that are shown
const COLOURS = [
  "#39405c", "#29a0e8", "#2e9e44", "#f4b400", "#f4511e", "#d81b60", "#8e3fc0", "#3949ab", "#00897b", "#6d4c41",
];
const wide = side + 2 * GAP;

const gemAt = (state, cell) => (cell ? state.columns[cell[0]]?.[cell[1]] : undefined);
const same = (one, other) => one && other && one[0] === other[0] && one[1] === other[1];

/** What two gems make, 0 where they do not join. */
function joined(one, other) {
  if (one === undefined || other === undefined) return 0;
  if (one === other) return one === WILD ? 0 : one + 1;
  return Math.min(one, other) === WILD && Math.max(one, other) <= LOW ? Math.max(one, other) + 1 : 0;
}

function joins(state, one, other) {
  const beside = one && other && Math.abs(one[0] - other[0]) + Math.abs(one[1] - other[1]) === 1;
  return beside ? joined(gemAt(state, one), gemAt(state, other)) : 0;
}

function join(one, other) {
  game.move((state) => {
    state.columns[other[0]][other[1]] = joins(state, one, other);
    state.columns[one[0]].splice(one[1], 1);
    if (state.used < coming.length) state.columns[one[0]].push(coming[state.used]);
    state.used += 1;
    state.picked = null;
  });
}

/** [column, row from below] of the gem under the pointer, null where there is none. */
function under(at) {
  const cell = [Math.floor(at.x - GAP), side - 1 - Math.floor(at.y - GAP)];
  return gemAt(game.state, cell) === undefined ? null : cell;
}

const most = (state) => Math.max(...state.columns.flat());
const first = Math.max(...columns.flat());
const won = (state) => most(state) >= target;
const stuck = (state) => !state.columns.some((column, x) => column.some(
  (_, y) => joins(state, [x, y], [x + 1, y]) || joins(state, [x, y], [x, y + 1]),
));

function gem(x, y, number, size, style) {
  const node = group(style);
  if (number === WILD) {
    disc(x, y, 0.42 * size, { fill: "#ffffff", stroke: "#39405c", width: 0.06 * size, parent: node });
    symbol("star", x, y, 0.72 * size, { fill: "#e53935", parent: node });
    return;
  }
  // As many corners as the number has, and two more.
  const corners = number + 2;
  const ring = (radius) => Array.from({ length: corners }, (_, n) => {
    const angle = ((n + (corners % 2 ? 0 : 0.5)) / corners) * 2 * Math.PI - Math.PI / 2;
    return [x + radius * Math.cos(angle), y + radius * Math.sin(angle)].map((value) => Math.round(value * 1e4) / 1e4);
  });
  const radius = (corners === 3 ? 0.5 : corners === 4 ? 0.5 : 0.45) * size;
  const outer = ring(radius).map(([a, b]) => [a, b + (corners === 3 ? 0.08 * size : 0)]);
  const inner = ring(0.68 * radius).map(([a, b]) => [a, b + (corners === 3 ? 0.08 * size : 0)]);
  const fill = COLOURS[Math.min(number, COLOURS.length - 1)];
  area(outer, { fill, stroke: "#ffffff", width: 0.05 * size, "stroke-linejoin": "round", parent: node });
  area(inner, { fill: "#ffffff2e", parent: node });
  text(x, y + (corners === 3 ? 0.1 : 0.02) * size, number, { size: 0.46 * size, fill: "#ffffff", parent: node });
}

function draw(state) {
  rect(0, 0, wide, wide, { fill: "#2b3149", r: 0.25 });
  for (let x = 0; x < side; x += 1) {
    for (let y = 0; y < side; y += 1) {
      const picked = same(state.picked, [x, side - 1 - y]);
      rect(GAP + x + 0.04, GAP + y + 0.04, 0.92, 0.92, { fill: picked ? "#fdd835" : "#3d4563", r: 0.14 });
    }
  }
  state.columns.forEach((column, x) => column.forEach((number, y) => {
    gem(GAP + x + 0.5, GAP + side - y - 0.5, number, 0.96, { name: `gem ${x} ${y}` });
  }));
  const left = wide + 0.1;
  rect(left, 0, 0.9, 0.5 + 0.8 * SHOWN, { fill: "#ffffff", stroke: "#c3cbdb", r: 0.2 });
  text(left + 0.45, 0.27, "Next", { size: 0.3 });
  coming.slice(state.used, state.used + SHOWN).forEach((number, i) => {
    gem(left + 0.45, 0.86 + 0.78 * i, number, 0.68, {});
  });
}

openBoard(wide + 1, wide);
onPointer({
  click(at) {
    const cell = under(at);
    if (!cell) return;
    if (joins(game.state, game.state.picked, cell)) join(game.state.picked, cell);
    else game.touch((state) => { state.picked = same(state.picked, cell) ? null : cell; });
  },
  drop(from, to) {
    if (joins(game.state, under(from), under(to))) join(under(from), under(to));
  },
});
startGame({
  state: { columns, used: 0, picked: null },
  draw,
  won,
  lost: (state) => !won(state) && stuck(state),
  score: (state) => Math.min(1, Math.max(0, most(state) - first) / (target - first)),
  label: (state) => `Best ${most(state)}/${target}`,
});
