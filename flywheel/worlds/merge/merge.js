"use strict";
// Number merge: arrow keys slide all tiles; two equal ones that meet become their sum. `board.py` has the same rules.

const SIZE = 4;
const COLOURS = { 2: "white", 4: "yellow", 8: "orange", 16: "red", 32: "purple", 64: "blue", 128: "green" };
const grid = document.getElementById("board");
const { target, spawn } = config.params;

let state = { board: structuredClone(config.params.board), moves: 0 };

const highest = () => Math.max(...state.board.flat());
const won = () => highest() >= target;
const stuck = () => Object.keys(TURNS).every((key) => same(slide(state.board, key), state.board));
const same = (a, b) => a.flat().every((value, i) => value === b.flat()[i]);
const transpose = (board) => board.map((_, i) => board.map((row) => row[i]));
const flip = (board) => board.map((row) => [...row].reverse());
const TURNS = {
  ArrowLeft: [(b) => b, (b) => b],
  ArrowRight: [flip, flip],
  ArrowUp: [transpose, transpose],
  ArrowDown: [(b) => flip(transpose(b)), (b) => transpose(flip(b))],
};

function slideLeft(row) {
  const values = row.filter((value) => value);
  const merged = [];
  while (values.length) {
    const value = values.shift();
    merged.push(values[0] === value ? value + values.shift() : value);
  }
  return [...merged, ...Array(SIZE - merged.length).fill(0)];
}

function slide(board, key) {
  const [turn, back] = TURNS[key];
  return back(turn(board).map(slideLeft));
}

function move(key) {
  const next = slide(state.board, key);
  if (won() || same(next, state.board)) return;
  state = { board: next, moves: state.moves + 1 };
  if (spawn !== null) {
    const empty = next.flat().flatMap((value, i) => (value ? [] : [i]));
    const i = empty[Math.floor(prng(spawn + state.moves)() * empty.length)];
    if (i !== undefined) next[Math.floor(i / SIZE)][i % SIZE] = 2;
  }
  draw();
}

function draw() {
  grid.replaceChildren();
  state.board.forEach((row, y) => row.forEach((value, x) => {
    const node = make(grid, value ? `cell block ${COLOURS[value] || "black"}` : "cell", value ? `tile ${y} ${x}` : "");
    place(node, 0.28 + x * 2.88, 0.28 + y * 2.88);
    node.textContent = value || "";
  }));
  document.getElementById("goal").textContent = `Reach ${target}`;
  document.getElementById("end").textContent = won() ? "You win!" : `Moves ${state.moves}`;
}

addEventListener("keydown", (event) => {
  if (event.key in TURNS) move(event.key);
});

publish({
  score: () => Math.min(1, highest() / target),
  terminated: () => won() || stuck(),
  getState: () => ({ ...structuredClone(state), target }),
  setState: (next) => {
    state = { board: next.board, moves: next.moves };
    draw();
  },
});
draw();
