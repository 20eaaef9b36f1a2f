"use strict";
// Pieces placed on a board from a tray of three, where full lines clear. `flywheel/envs/suites/placing.py` has the same rules.

const TRAY = 3;

/**
 * Start such a game. Of the board:
 *   cells      [[a, b], ...], its cells; `filled` of the params are some of them
 *   lines      [[cell number, ...], ...]
 *   centre     centre([a, b]): where a cell is, [x, y] in units; nearest([x, y]): its opposite, off the board too
 *   cell       cell(x, y, fill, scale, parent): draw a piece's square there
 *   ground     ground(): draw the empty board
 *   slots      [[x, y, w, h], ...]: the three places of the tray; `scale`: how small pieces lie there
 *   old        the colour of cells filled at the start
 */
function placePieces({ cells, lines, centre, nearest, cell, ground, slots, scale, old }) {
  const { pieces, filled, target } = config.params;
  const numbers = new Map(cells.map((at, number) => [String(at), number]));
  const nothing = Array(TRAY).fill(null);
  const deal = (from) => nothing.map((_, slot) => (from + slot < pieces.length ? from + slot : null));

  /** The numbers of the cells that a piece covers with its first square on `at`; null where it does not fit. */
  function covered(state, piece, [a, b]) {
    const under = pieces[piece].shape.map(([da, db]) => numbers.get(String([a + da, b + db])));
    return under.every((number) => number !== undefined && !state.cells[number]) ? under : null;
  }

  const won = (state) => state.lines >= target;
  const lost = (state) => !won(state)
    && state.tray.every((piece) => piece === null || !cells.some((at) => covered(state, piece, at)));

  function put(slot, under) {
    game.move((state) => {
      for (const number of under) state.cells[number] = pieces[state.tray[slot]].colour;
      const full = lines.filter((line) => line.every((number) => state.cells[number]));
      for (const number of full.flat()) state.cells[number] = null;
      state.lines += full.length;
      state.tray[slot] = null;
      if (state.tray.every((piece) => piece === null)) {
        state.tray = deal(state.dealt);
        state.dealt += state.tray.filter((piece) => piece !== null).length;
      }
    });
  }

  /** The middle of a piece whose first square is at the origin. */
  function middle(piece) {
    const at = pieces[piece].shape.map(centre);
    const [x, y] = centre([0, 0]);
    const half = (axis) => {
      const all = at.map((place) => place[axis]);
      return (Math.min(...all) + Math.max(...all)) / 2;
    };
    return [half(0) - x, half(1) - y];
  }

  function drawPiece(piece, [x, y], size, fill, parent) {
    const [ox, oy] = centre([0, 0]);
    for (const square of pieces[piece].shape) {
      const [cx, cy] = centre(square);
      cell(x + (cx - ox) * size, y + (cy - oy) * size, fill, size, parent);
    }
  }

  const slotOf = (at) => (at.name.startsWith("piece ") ? Number(at.name.slice(6)) : -1);
  const slotMiddle = ([x, y, w, h]) => [x + w / 2, y + h / 2];

  /** Where a piece's first square is, for a pointer that gripped the piece at `from` and is at `at`. */
  function origin(from, at) {
    const slot = slotOf(from);
    const [mx, my] = middle(game.state.tray[slot]);
    const [sx, sy] = slotMiddle(slots[slot]);
    return [at.x - (from.x - sx) / scale - mx, at.y - (from.y - sy) / scale - my];
  }

  let shadow = null; // where a lifted piece would fall

  openBoard(...boardSize(), {});
  onPointer({
    lift(from) {
      const piece = game.state.tray[slotOf(from)] ?? null;
      if (piece === null) return null;
      board.svg.querySelector(`[data-el="${from.name}"]`).classList.add("faded");
      shadow = group({ look: "faded" });
      const node = group({ look: "plain" });
      drawPiece(piece, origin(from, from), 1, pieces[piece].colour, node);
      return node;
    },
    follow(from, at) {
      const piece = game.state.tray[slotOf(from)];
      const anchor = nearest(origin(from, at));
      shadow.replaceChildren();
      if (covered(game.state, piece, anchor)) drawPiece(piece, centre(anchor), 1, pieces[piece].colour, shadow);
      return [at.x - from.x, at.y - from.y];
    },
    drop(from, to) {
      const piece = game.state.tray[slotOf(from)] ?? null;
      const under = piece === null ? null : covered(game.state, piece, nearest(origin(from, to)));
      if (under) put(slotOf(from), under);
    },
  });

  function boardSize() {
    const right = slots.map(([x, , w]) => x + w);
    const low = slots.map(([, y, , h]) => y + h);
    return [Math.max(...right), Math.max(...low)];
  }

  const start = new Set(filled.map(String));
  startGame({
    state: {
      cells: cells.map((at) => (start.has(String(at)) ? old : null)), tray: deal(0),
      dealt: Math.min(TRAY, pieces.length), lines: 0,
    },
    draw(state) {
      ground();
      cells.forEach((at, number) => {
        if (state.cells[number]) cell(...centre(at), state.cells[number], 1);
      });
      slots.forEach(([x, y, w, h], slot) => {
        const piece = state.tray[slot];
        const node = group(piece === null ? {} : { name: `piece ${slot}`, look: "movable" });
        rect(x + 0.06, y + 0.06, w - 0.12, h - 0.12, { r: 0.25, fill: "#ffffff", stroke: "#c3cbdb", parent: node });
        if (piece === null) return;
        const [mx, my] = middle(piece);
        const [sx, sy] = slotMiddle(slots[slot]);
        drawPiece(piece, [sx - mx * scale, sy - my * scale], scale, pieces[piece].colour, node);
      });
    },
    won,
    lost,
    score: (state) => Math.min(1, state.lines / target),
    label: (state) => `Lines ${state.lines}/${target}`,
  });
}
