"use strict";
// Light maze: an arrow key sends the light to the next wall or crossing. A cell is the sum of its open sides.
// `rules.py` has the same rules.

const { cols, rows, passages, light, star, keys, doors, gates, switches } = config.params;
const SIDES = { // side, step there, the side opposite
  ArrowUp: [1, 0, -1, 4], ArrowRight: [2, 1, 0, 8], ArrowDown: [4, 0, 1, 1], ArrowLeft: [8, -1, 0, 2],
};
const COLOURS = ["blue", "red", "purple"];

const on = (places, x, y) => places.findIndex((place) => place[0] === x && place[1] === y);
const across = (places, x, y, side) => places.findIndex((place) => on([place], x, y) === 0 && place[2] === side);
const shut = (gate, state) => Boolean(gate[3]) !== state.flipped;
const arrived = (state) => on([star], ...state.light) === 0;

/** Whether the light gets over a side of the cell (x, y). */
function passes(state, x, y, [side, dx, dy, opposite]) {
  if (!(passages[y][x] & side)) return false;
  const edge = side === 2 || side === 4 ? [x, y, side] : [x + dx, y + dy, opposite];
  const [door, gate] = [across(doors, ...edge), across(gates, ...edge)];
  if (door >= 0 && !state.taken.includes(door)) return false;
  return gate < 0 || !shut(gates[gate], state);
}

function run(key) {
  const way = SIDES[key];
  if (!passes(game.state, ...game.state.light, way)) return;
  game.move((state) => {
    for (let going = true; going && passes(state, ...state.light, way);) {
      const [x, y] = [state.light[0] + way[1], state.light[1] + way[2]];
      state.light = [x, y];
      if (on(state.trail, x, y) < 0) state.trail.push([x, y]);
      const number = on(keys, x, y);
      const found = number >= 0 && !state.taken.includes(number);
      if (found) state.taken.push(number);
      const flips = on(switches, x, y) >= 0;
      if (flips) state.flipped = !state.flipped;
      going = !found && !flips && !arrived(state) && !(passages[y][x] & ~(way[0] | way[3]));
    }
  });
}

/** A bar over a side (right or lower) of the cell (x, y), `long` of it from each end. */
function bar(x, y, side, long, style) {
  for (const from of long >= 0.5 ? [0.04] : [0.04, 0.96 - long]) {
    const length = long >= 0.5 ? 0.92 : long;
    if (side === 2) rect(x + 0.9, y + from, 0.2, length, style);
    else rect(x + from, y + 0.9, length, 0.2, style);
  }
}

function drawBoard(state) {
  for (let y = 0; y < rows; y += 1) {
    for (let x = 0; x < cols; x += 1) disc(x + 0.5, y + 0.5, 0.06, { fill: "#353f63" });
  }
  for (const [stroke, width] of [["#55502f", 0.42], ["#b89b47", 0.16]]) { // where the light has been
    for (const [x, y] of state.trail) {
      for (const [side, dx, dy] of [SIDES.ArrowRight, SIDES.ArrowDown]) {
        const both = passages[y][x] & side && on(state.trail, x + dx, y + dy) >= 0;
        if (both) line([[x + 0.5, y + 0.5], [x + dx + 0.5, y + dy + 0.5]], { stroke, width });
      }
    }
  }
  for (let y = 0; y < rows; y += 1) {
    for (let x = 0; x < cols; x += 1) {
      const wall = { stroke: "#8fa0ee", width: 0.1 };
      if (!(passages[y][x] & 2) && x + 1 < cols) line([[x + 1, y], [x + 1, y + 1]], wall);
      if (!(passages[y][x] & 4) && y + 1 < rows) line([[x, y + 1], [x + 1, y + 1]], wall);
    }
  }
  rect(0, 0, cols, rows, { stroke: "#8fa0ee", width: 0.12, r: 0.06 });
  gates.forEach(([x, y, side, ...rest]) => {
    const closed = shut([x, y, side, ...rest], state);
    bar(x, y, side, closed ? 1 : 0.16, { fill: "orange", stroke: "#5b3200", width: 0.04, r: 0.05, name: "gate" });
  });
  for (const [x, y] of switches) {
    disc(x + 0.5, y + 0.5, 0.34, { fill: "orange", stroke: "#5b3200", name: "switch" });
    symbol("bolt", x + 0.5, y + 0.5, 0.48, { fill: "#3a2000" });
  }
  doors.forEach(([x, y, side], i) => {
    if (state.taken.includes(i)) return;
    bar(x, y, side, 1, { fill: COLOURS[i], stroke: "white", width: 0.05, r: 0.06, name: `door ${COLOURS[i]}` });
    disc(x + (side === 2 ? 1 : 0.5), y + (side === 2 ? 0.5 : 1), 0.07, { fill: "white" });
  });
  keys.forEach(([x, y], i) => {
    if (state.taken.includes(i)) return;
    disc(x + 0.5, y + 0.5, 0.36, { fill: COLOURS[i], stroke: "white", width: 0.05, name: `key ${COLOURS[i]}` });
    symbol("key", x + 0.5, y + 0.5, 0.52);
  });
  const [x, y] = state.light;
  for (const [r, fill] of [[0.5, "#ffe27a44"], [0.36, "#ffe27aaa"], [0.25, "#fff6cf"]]) {
    disc(x + 0.5, y + 0.5, r, { fill });
  }
  const shine = arrived(state) ? "yellow" : "white";
  disc(star[0] + 0.5, star[1] + 0.5, 0.38, { fill: "green", stroke: shine, name: "star" });
  symbol("star", star[0] + 0.5, star[1] + 0.5, 0.5, { fill: shine });
}

openBoard(cols, rows, { colour: "#191f33", border: 0.16 });
onKeys(Object.fromEntries(Object.keys(SIDES).map((key) => [key, () => run(key)])));
startGame({
  state: { light, taken: [], flipped: false, trail: [light] },
  draw: drawBoard,
  won: arrived,
  score: (state) => (state.taken.length + (arrived(state) ? 1 : 0)) / (keys.length + 1),
  label: (state) => `Keys ${state.taken.length}/${keys.length}`,
});
