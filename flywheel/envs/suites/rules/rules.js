"use strict";
// A game that a file of rules declares. `engine.py` has the same semantics, `language.py` tells a program's numbers.

const { program, cols, rows, cells } = config.params;
const STEPS = [[0, -1], [1, 0], [0, 1], [-1, 0]];
const KEYS = "urdl"; // by direction
const PASSES = 100; // of a turn
const SWEEPS = 100; // of a rule in one direction

const noMarks = () => STEPS.map(() => new Map());
const any = (marks) => marks.some((way) => [...way.values()].some(Boolean));

/** The cells of a run of `length` from `cell` on; null where it leaves the board. */
function runFrom(cell, direction, length) {
  const run = [];
  for (let step = 0; step < length; step += 1) {
    const x = (cell % cols) + step * STEPS[direction][0];
    const y = Math.floor(cell / cols) + step * STEPS[direction][1];
    if (x < 0 || y < 0 || x >= cols || y >= rows) return null;
    run.push(y * cols + x);
  }
  return run;
}

// -- conditions -------------------------------------------------------------------------------------------------------
function holds([kind, bit, ground, number], board) {
  const both = bit | ground;
  const count = board.filter((there) => (there & both) === both).length;
  if (kind === "no") return count === 0;
  if (kind === "some") return count > 0;
  if (kind === "all") return !board.some((there) => there & bit && !(there & ground));
  return count >= number;
}

/** How far a condition is met, 0 to 1; of `no` by how many there were at the start. */
function share([kind, bit, ground, number], board) {
  const both = bit | ground;
  const count = board.filter((there) => (there & both) === both).length;
  if (kind === "no") return 1 - count / Math.max(count, cells.filter((there) => (there & both) === both).length, 1);
  if (kind === "all") {
    const total = board.filter((there) => there & bit).length;
    return total ? count / total : 1;
  }
  return Math.min(count / Math.max(number, 1), 1);
}

const lost = (board) => program.lose.some((one) => holds(one, board));
const won = (board) => program.win.every((one) => holds(one, board)) && !lost(board);

function score(board) {
  if (won(board)) return 1;
  let shares = 0;
  for (const one of program.win) shares += share(one, board);
  return Math.min(shares / program.win.length, 0.999);
}

// -- a turn -----------------------------------------------------------------------------------------------------------
function fits(board, seen, direction, row, run) {
  return row.every(([have, no, along, against], i) => {
    const cell = run[i];
    return (board[cell] & have) === have && !(board[cell] & no)
      && ((seen[direction].get(cell) || 0) & along) === along
      && ((seen[direction ^ 2].get(cell) || 0) & against) === against;
  });
}

/** Where the rows of a rule match: a run of cells for each, in the order of their first cells. */
function matches(rule, direction, board, seen) {
  let found = [[]];
  for (const row of rule.rows) {
    const runs = [];
    for (let cell = 0; cell < board.length; cell += 1) {
      const run = runFrom(cell, direction, row.length);
      if (run && fits(board, seen, direction, row, run)) runs.push(run);
    }
    found = found.flatMap((before) => runs.map((run) => [...before, run]));
  }
  return found;
}

function rewrite(row, run, direction, board, seen, ahead) {
  let changed = false;
  row.forEach(([, , , , clear, add, unmark, along, against], i) => {
    const cell = run[i];
    const old = board[cell];
    board[cell] = (old & ~clear) | add;
    const gone = old & ~board[cell];
    if (board[cell] !== old) changed = true;
    for (let way = 0; way < 4; way += 1) {
      const marked = seen[way].get(cell) || 0;
      if (marked & (unmark | gone)) {
        seen[way].set(cell, marked & ~(unmark | gone));
        changed = true;
      }
      const before = ahead[way].get(cell) || 0;
      const mark = way === direction ? along : way === (direction ^ 2) ? against : 0;
      const after = (before & ~(along | against | gone)) | mark;
      if (after !== before) {
        ahead[way].set(cell, after);
        changed = true;
      }
    }
  });
  return changed;
}

/** Apply rules; false where one never ends. */
function applyRules(rules, board, seen, ahead) {
  for (const rule of rules) {
    if (!rule.when.every((one) => holds(one, board))) continue;
    for (const direction of rule.directions) {
      let changed = true;
      for (let sweep = 0; changed; sweep += 1) {
        if (sweep === SWEEPS) return false;
        changed = false;
        for (const places of matches(rule, direction, board, seen)) {
          if (!rule.rows.every((row, i) => fits(board, seen, direction, row, places[i]))) continue;
          rule.rows.forEach((row, i) => {
            if (rewrite(row, places[i], direction, board, seen, ahead)) changed = true;
          });
        }
      }
    }
  }
  return true;
}

function moveAll(board, moving, moved) {
  for (let going = true; going;) {
    going = false;
    moving.forEach((marks, direction) => {
      for (const cell of [...marks.keys()].sort((a, b) => a - b)) {
        const run = runFrom(cell, direction, 2);
        for (let left = run ? marks.get(cell) : 0; left;) {
          const bit = left & -left;
          left ^= bit;
          if (board[run[1]] & program.rivals[31 - Math.clz32(bit)]) continue;
          board[cell] ^= bit;
          board[run[1]] |= bit;
          marks.set(cell, marks.get(cell) ^ bit);
          moved[direction].set(run[1], (moved[direction].get(run[1]) || 0) | bit);
          going = true;
        }
      }
    });
  }
}

/** The board after a key; unchanged where its rules never end. */
function turn(start, direction) {
  const board = [...start];
  let moving = noMarks();
  board.forEach((there, cell) => {
    if (there & program.player) moving[direction].set(cell, program.player);
  });
  for (let pass = 0; pass < PASSES; pass += 1) {
    const moved = noMarks();
    if (!applyRules(program.rules.filter((rule) => !rule.late), board, moving, moving)) return start;
    moveAll(board, moving, moved);
    moving = noMarks();
    if (!applyRules(program.rules.filter((rule) => rule.late), board, moved, moving)) return start;
    if (!any(moving)) return board;
  }
  return start;
}

// -- the page ---------------------------------------------------------------------------------------------------------
function press(key) {
  const after = key === "x" ? cells : turn(game.state.cells, KEYS.indexOf(key));
  if (after.every((there, cell) => there === game.state.cells[cell])) return;
  game.move((state) => {
    state.cells = [...after];
    state.keys += key;
  });
}

/** An object on the cell at (x, y). */
function drawObject({ draw, colour: fill, icon, label }, x, y) {
  const [mx, my] = [x + 0.5, y + 0.5];
  const node = group({ name: label });
  const at = { parent: node };
  const sign = (size, ink_) => icon && symbol(icon, mx, my, size, { fill: ink_, ...at });
  if (draw === "ground") {
    rect(x + 0.02, y + 0.02, 0.96, 0.96, { fill, opacity: 0.4, ...at });
    sign(0.4, "#ffffffcc");
  } else if (draw === "mark") {
    rect(x + 0.06, y + 0.06, 0.88, 0.88, { r: 0.1, fill: "#ffffffcc", stroke: fill, width: 0.09, ...at });
    sign(0.5, fill);
  } else if (draw === "thing") {
    sign(0.8, "#1b1f27");
    sign(0.68, fill);
  } else if (draw === "wall") {
    rect(x, y, 1, 1, { fill, ...at });
    sign(0.5, "#ffffff88");
  } else if (draw === "piece") {
    disc(mx, my, 0.36, { fill, stroke: "#1b1f27", width: 0.06, ...at });
    sign(0.42, ink(fill));
  } else {
    rect(x + 0.15, y + 0.15, 0.7, 0.7, { r: 0.1, fill, stroke: "#1b1f27", width: 0.06, ...at });
    sign(0.46, ink(fill));
  }
}

const ROW = 0.72; // height of a line of the legend, in cells
const known = program.objects.filter((one) => one.label).sort((a, b) => (b.name === "player") - (a.name === "player"));
const longest = Math.max(1, ...known.map((one) => one.label.length));
const across = Math.max(1, Math.floor(cols / (0.8 + 0.18 * longest))); // entries of a line
const lines = Math.ceil(known.length / across);

function drawBoard(state) {
  rect(0, 0, cols, rows, { fill: "#f3ead8" });
  for (let x = 0; x <= cols; x += 1) line([[x, 0], [x, rows]], { stroke: "#d9ccb2", width: 0.03 });
  for (let y = 0; y <= rows; y += 1) line([[0, y], [cols, y]], { stroke: "#d9ccb2", width: 0.03 });
  state.cells.forEach((there, cell) => {
    program.objects.forEach((one, number) => {
      if (there & (1 << number)) drawObject(one, cell % cols, Math.floor(cell / cols));
    });
  });
  rect(0, 0, cols, rows, { stroke: "#4b4f5c", width: 0.08 });
  known.forEach((one, i) => { // the legend
    const [x, y] = [((i % across) * cols) / across, rows + 0.2 + Math.floor(i / across) * ROW];
    const node = group({ transform: `translate(${x} ${y}) scale(0.62)` });
    const kept = board.svg;
    board.svg = node;
    drawObject({ ...one, label: "" }, 0, 0);
    board.svg = kept;
    const words = text(x + 0.7, y + 0.32, one.label, { size: 0.32 });
    words.style.textAnchor = "start";
  });
}

openBoard(cols, rows + 0.2 + lines * ROW, { border: 0.1 });
onKeys({
  ArrowUp: () => press("u"), ArrowRight: () => press("r"), ArrowDown: () => press("d"), ArrowLeft: () => press("l"),
  r: () => press("x"),
});
startGame({
  state: { cells, keys: "" },
  draw: drawBoard,
  won: (state) => won(state.cells),
  lost: (state) => lost(state.cells),
  score: (state) => score(state.cells),
});
