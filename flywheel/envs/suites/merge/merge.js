"use strict";
// Number merge: arrow keys slide all tiles; two equal ones that meet become their sum, which is scored. A new tile
// comes after each move where the level says so. `board.py` has the same rules.

const SIZE = 4;
const COLOURS = {
  2: "white", 4: "yellow", 8: "orange", 16: "red", 32: "purple", 64: "blue", 128: "green", 256: "pink", 512: "gray",
};
const { target = null, goal = null, spawn } = config.params; // a tile to reach, or points to score

const highest = (state) => Math.max(...state.board.flat());
const share = (state) => Math.min(1, target ? highest(state) / target : state.points / goal);
const same = (a, b) => a.flat().every((value, i) => value === b.flat()[i]);
const transpose = (board) => board.map((_, i) => board.map((row) => row[i]));
const flip = (board) => board.map((row) => [...row].reverse());
const TURNS = {
  ArrowLeft: [(b) => b, (b) => b],
  ArrowRight: [flip, flip],
  ArrowUp: [transpose, transpose],
  ArrowDown: [(b) => flip(transpose(b)), (b) => transpose(flip(b))],
};

function slideLeft(row, gained) {
  const values = row.filter((value) => value);
  const merged = [];
  while (values.length) {
    const value = values.shift();
    if (values[0] === value) gained.push(value + values[0]);
    merged.push(values[0] === value ? value + values.shift() : value);
  }
  return [...merged, ...Array(SIZE - merged.length).fill(0)];
}

/** The board after a key; the values that merged are put into `gained`. */
function slide(board, key, gained = []) {
  const [turn, back] = TURNS[key];
  return back(turn(board).map((row) => slideLeft(row, gained)));
}

/** A 2, or one time in ten a 4, on an empty cell: the same for the same level and number of moves. */
function fill(board, moves) {
  const empty = board.flat().flatMap((value, i) => (value ? [] : [i]));
  const chance = prng(spawn + moves);
  const i = empty[Math.floor(chance() * empty.length)];
  if (i !== undefined) board[Math.floor(i / SIZE)][i % SIZE] = chance() < 0.9 ? 2 : 4;
}

function press(key) {
  const gained = [];
  const next = slide(game.state.board, key, gained);
  if (same(next, game.state.board)) return;
  game.move((state) => {
    if (spawn !== null) fill(next, state.moves + 1);
    state.board = next;
    state.points += gained.reduce((sum, value) => sum + value, 0);
  });
}

openBoard(SIZE, SIZE, { colour: "#465069", border: 0.1 });
onKeys(Object.fromEntries(Object.keys(TURNS).map((key) => [key, () => press(key)])));
startGame({
  state: { board: config.params.board, points: 0 },
  draw: (state) => state.board.forEach((row, y) => row.forEach((value, x) => {
    if (value) tile(x, y, COLOURS[value] || "black", { words: value, size: 0.9, name: `tile ${y} ${x}` });
    else rect(x + 0.05, y + 0.05, 0.9, 0.9, { fill: "#5d6985", r: 0.14 });
  })),
  won: (state) => share(state) >= 1,
  lost: (state) => share(state) < 1 && Object.keys(TURNS).every((key) => same(slide(state.board, key), state.board)),
  score: share,
  label: (state) => (target ? `Goal ${target}` : `Points ${state.points}/${goal}`),
  facts: () => ({ target, goal }),
});
