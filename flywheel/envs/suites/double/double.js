"use strict";
// Merge and double: the next number falls on a column, a top one is put on an equal one; equal ones double.
// `rules.py` has the same rules.

const { columns, coming, high, target } = config.params; // columns: numbers from below
const TOP = 1.5; // units above the columns, for the numbers to come
const SHOWN = 4; // numbers to come that are shown
const COLOURS = [
  "#8a8f98", "#29a0e8", "#2e9e44", "#8bb81f", "#f4b400", "#fb8c00", "#e53935", "#d81b60", "#8e3fc0", "#3949ab",
  "#00897b", "#222222",
];
const wide = Math.max(columns.length, SHOWN + 0.6);
const left = (wide - columns.length) / 2;

/** The column after a number fell on it: equal ones double from above, as long as there are any. */
function dropped(column, number) {
  const kept = [...column];
  let made = number;
  while (kept.length && kept.at(-1) === made) {
    kept.pop();
    made *= 2;
  }
  return [...kept, made];
}

function fits(state, place) {
  const column = state.columns[place];
  return column !== undefined && state.used < coming.length
    && dropped(column, coming[state.used]).length <= high;
}

const columnAt = (at) => (at.y >= TOP && at.inside ? Math.floor(at.x - left) : -1);

function drop(place) {
  if (!fits(game.state, place)) return;
  game.move((state) => {
    state.columns[place] = dropped(state.columns[place], coming[state.used]);
    state.used += 1;
  });
}

/** Whether the uppermost number of one column is equal to that of another. */
function equal(state, one, to) {
  const top = state.columns[one]?.at(-1);
  return one !== to && top !== undefined && state.columns[to]?.at(-1) === top;
}

function join(one, to) {
  if (!equal(game.state, one, to)) return;
  game.move((state) => {
    const number = state.columns[one].pop();
    state.columns[to] = dropped(state.columns[to], number);
  });
}

const best = (state) => Math.max(0, ...state.columns.flat());
const won = (state) => best(state) >= target;
const first = Math.log2(best({ columns }) || 1);

function number(x, y, value, size, style = {}) {
  const fill = COLOURS[Math.min(Math.round(Math.log2(value)) - 1, COLOURS.length - 1)];
  const node = group(style);
  const half = 0.46 * size;
  rect(x - half, y - half + 0.04 * size, 2 * half, 2 * half, { r: 0.14 * size, fill: "#00000050", parent: node });
  rect(x - half, y - half, 2 * half, 1.94 * half, { r: 0.14 * size, fill, parent: node });
  rect(x - 0.36 * size, y - 0.39 * size, 0.72 * size, 0.1 * size, { r: 0.05 * size, fill: "#ffffff60", parent: node });
  const long = String(value).length;
  text(x, y + 0.03 * size, value, { size: [0.56, 0.56, 0.48, 0.38][Math.min(long - 1, 3)] * size, fill: "#fff", parent: node });
}

function draw(state) {
  rect(0, 0, wide, TOP - 0.25, { fill: "#ffffff", stroke: "#c3cbdb", r: 0.2 });
  text(0.5, (TOP - 0.25) / 2, "Next", { size: 0.36 });
  coming.slice(state.used, state.used + SHOWN).forEach((value, i) => {
    if (i === 0) number(1.5, (TOP - 0.25) / 2, value, 1.1, { name: "next" });
    else number(1.6 + 0.82 * i, (TOP - 0.25) / 2, value, 0.7);
  });
  state.columns.forEach((column, place) => {
    const x = left + place;
    const node = group({ name: `column ${place}` });
    rect(x + 0.03, TOP, 0.94, high + 0.06, { fill: fits(state, place) ? "#3d4563" : "#6b4350", r: 0.16, parent: node });
    path(`M ${x + 0.36} ${TOP + 0.1} h 0.28 l -0.14 0.16 Z`, { fill: "#ffffff90", parent: node });
    column.forEach((value, row) => {
      const top = row === column.length - 1 ? { name: `top ${place}`, look: "movable" } : { parent: node };
      number(x + 0.5, TOP + high - row - 0.47, value, 0.94, top);
    });
  });
}

openBoard(wide, TOP + high + 0.06);
onPointer({
  click: (at) => drop(columnAt(at)),
  lift: (from) => (from.name.startsWith("top ") ? board.svg.querySelector(`[data-el="${from.name}"]`) : null),
  drop: (from, to) => { if (from.name.startsWith("top ")) join(columnAt(from), columnAt(to)); },
});
onKeys(Object.fromEntries(columns.map((_, place) => [String(place + 1), () => drop(place)])));
startGame({
  state: { columns, used: 0 },
  draw,
  won,
  lost: (state) => !won(state)
    && !columns.some((_, place) => fits(state, place) || columns.some((__, one) => equal(state, one, place))),
  score: (state) => (won(state) ? 1 : Math.max(0, (Math.log2(best(state) || 1) - first) / (Math.log2(target) - first))),
  label: (state) => `Best ${best(state)}/${target}`,
});
