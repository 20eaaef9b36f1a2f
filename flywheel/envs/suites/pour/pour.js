"use strict";
// Pour and sort: click a tube, then another; or drag from one to the other. `rules.py` has the same rules.

const { size, tubes } = config.params;
const COLOURS = {
  star: "yellow", heart: "red", moon: "purple", leaf: "green", drop: "blue", bell: "orange", key: "gray",
  house: "pink", bolt: "black", diamond: "white",
};
const LINES = tubes.length > 5 ? 2 : 1;
const ACROSS = Math.ceil(tubes.length / LINES);
const WIDE = 1.5; // units from tube to tube
const HIGH = size + 1.25; // from line to line: a tube, and room for what is lifted out of it

/** Left and upper side of a tube's glass. */
function place(i) {
  const second = i >= ACROSS;
  const shift = second ? (2 * ACROSS - tubes.length) / 2 : 0; // the lower line stands in the middle
  return [((i % ACROSS) + shift) * WIDE + 0.2, (second ? HIGH : 0) + 0.8];
}

/** The tube at a place of the board, -1 where there is none. */
const tubeAt = ({ x, y }) => tubes.findIndex((_, i) => {
  const [left, upper] = place(i);
  return x >= left && x < left + WIDE - 0.4 && y >= upper - 0.4 && y < upper + size + 0.25;
});

function run(tube) {
  let count = 0;
  while (count < tube.length && tube[tube.length - 1 - count] === tube[tube.length - 1]) count += 1;
  return count;
}

const finished = (tube) => run(tube) === size;

/** How many symbols go from one tube to another; 0 where that is not allowed. */
function poured(source, target) {
  if (source === target || !source.length || finished(source)) return 0;
  if (target.length && target[target.length - 1] !== source[source.length - 1]) return 0;
  return Math.min(run(source), size - target.length);
}

function pour(from, to) {
  const count = poured(game.state.tubes[from], game.state.tubes[to]);
  if (!count) return false;
  game.move((state) => {
    state.tubes[to].push(...state.tubes[from].splice(-count));
    state.chosen = null;
  });
  return true;
}

function click(at) {
  const i = tubeAt(at);
  const { chosen, tubes: now } = game.state;
  if (i < 0 || (chosen !== null && pour(chosen, i))) return;
  const takes = i !== chosen && now[i].length && !finished(now[i]);
  if (takes || chosen !== null) game.touch((state) => { state.chosen = takes ? i : null; });
}

function drop(from, to) {
  const [source, target] = [tubeAt(from), tubeAt(to)];
  if (source >= 0 && target >= 0) pour(source, target);
}

const runs = []; // the node of each tube's top run

function drawTube(state, i) {
  const tube = state.tubes[i];
  const [left, upper] = place(i);
  const [wide, high] = [WIDE - 0.4, size + 0.2];
  const chosen = state.chosen === i;
  const glass = chosen
    ? { fill: "#fff7cf", stroke: "orange", width: 0.12 }
    : { fill: "#f7faff", stroke: "#7d8aa5", width: 0.08 };
  const [right, bottom] = [left + wide, upper + high];
  path(
    `M${left} ${upper}V${bottom - 0.5}Q${left} ${bottom} ${left + 0.5} ${bottom}H${right - 0.5}` +
    `Q${right} ${bottom} ${right} ${bottom - 0.5}V${upper}Z`, { ...glass, name: `tube ${i}` },
  );
  rect(left - 0.1, upper - 0.1, wide + 0.2, 0.16, { r: 0.08, fill: glass.stroke });
  const top = tube.length - run(tube);
  runs[i] = group();
  tube.forEach((kind, k) => {
    const parent = k >= top ? runs[i] : undefined;
    const [x, y] = [left + wide / 2, bottom - 0.62 - k - (chosen && k >= top ? 0.55 : 0)];
    disc(x, y, 0.47, { fill: COLOURS[kind], stroke: "#1b1f27", width: 0.05, parent });
    symbol(kind, x, y, 0.6, { fill: ink(COLOURS[kind]), parent });
  });
  if (finished(tube)) rect(left + 0.08, upper - 0.5, wide - 0.16, 0.5, { r: 0.12, fill: "#b5793c", stroke: "#6d4420" });
}

openBoard(ACROSS * WIDE, LINES * HIGH + 0.1, { colour: "#d3deee", border: 0.15 });
onPointer({
  click,
  drop,
  lift: (from) => {
    const i = tubeAt(from);
    return i >= 0 && game.state.tubes[i].length && !finished(game.state.tubes[i]) ? runs[i] : null;
  },
});
startGame({
  state: { tubes, chosen: null },
  draw: (state) => state.tubes.forEach((_, i) => drawTube(state, i)),
  won: (state) => state.tubes.every((tube) => !tube.length || finished(tube)),
  lost: (state) => !state.tubes.every((tube) => !tube.length || finished(tube)) &&
    state.tubes.every((source) => state.tubes.every((target) => !poured(source, target))),
  score: (state) => (size * state.tubes.filter(finished).length) / tubes.flat().length,
  label: (state) => `Sorted ${state.tubes.filter(finished).length}/${tubes.flat().length / size}`,
});
