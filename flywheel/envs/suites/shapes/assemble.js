"use strict";
// Shape fit, higher levels: pieces of squares that fill a figure together. A lifted piece is held by its middle and
// goes where it fits best; where it does not fit, it goes back below. `rules.py` has the same rules.

function assemble({ figure, pieces, unit, origin, home }) {
  const inFigure = (cell) => figure.some(([x, y]) => x === cell[0] && y === cell[1]);
  const indexOf = (name) => (name.startsWith("piece ") ? Number(name.slice(6)) : -1);

  /** The squares of a piece after its quarter turns, from (0, 0) on, and its width and height. */
  function turned(number) {
    let cells = pieces[number].cells;
    for (let i = 0; i < game.state.pieces[number].turn; i += 1) {
      const height = 1 + Math.max(...cells.map(([, y]) => y));
      cells = cells.map(([x, y]) => [height - 1 - y, x]);
    }
    return { cells, w: 1 + Math.max(...cells.map(([x]) => x)), h: 1 + Math.max(...cells.map(([, y]) => y)) };
  }

  const placed = (number, [x, y]) => turned(number).cells.map(([dx, dy]) => [x + dx, y + dy]);

  /** Whether the piece fits with its corner at a square of the figure. */
  function fits(number, at) {
    const taken = game.state.pieces.flatMap(({ at: other }, i) => (other && i !== number ? placed(i, other) : []));
    return placed(number, at).every((cell) => inFigure(cell) && !taken.some(([x, y]) => x === cell[0] && y === cell[1]));
  }

  /** A piece with its middle at (x, y), its squares `size` wide. */
  function drawPiece(number, x, y, size) {
    const { cells, w, h } = turned(number);
    const node = group({ look: "movable", name: `piece ${number}` });
    const left = x - (w * size) / 2;
    const top = y - (h * size) / 2;
    for (const [cx, cy] of cells) {
      const style = { fill: pieces[number].colour, stroke: "#1b1f27", width: 0.07, parent: node };
      rect(left + cx * size, top + cy * size, size, size, style);
      rect(left + (cx + 0.14) * size, top + (cy + 0.14) * size, 0.72 * size, 0.22 * size, {
        fill: "#ffffff", opacity: 0.28, r: 0.08 * size, parent: node,
      });
    }
    return node;
  }

  const middle = (number, [x, y]) => {
    const { w, h } = turned(number);
    return [origin[0] + (x + w / 2) * unit, origin[1] + (y + h / 2) * unit];
  };

  onPointer({
    click: (at) => {
      const number = indexOf(at.name);
      if (number < 0 || game.state.pieces[number].at) return;
      game.move((state) => { state.pieces[number].turn = (state.pieces[number].turn + 1) % 4; });
    },
    lift: (from) => {
      const number = indexOf(from.name);
      if (number < 0) return null;
      document.querySelector(`[data-el="${from.name}"]`).remove();
      return drawPiece(number, from.x, from.y, unit);
    },
    drop: (from, to) => {
      const number = indexOf(from.name);
      if (number < 0) return;
      const { w, h } = turned(number);
      const at = [Math.round((to.x - origin[0]) / unit - w / 2), Math.round((to.y - origin[1]) / unit - h / 2)];
      const before = game.state.pieces[number].at;
      const after = fits(number, at) ? at : null;
      if (JSON.stringify(before) === JSON.stringify(after)) return;
      game.move((state) => { state.pieces[number].at = after; });
    },
  });
  const covered = (state) => state.pieces.reduce((sum, { at }, i) => sum + (at ? pieces[i].cells.length : 0), 0);
  startGame({
    state: { pieces: pieces.map(({ turn }) => ({ turn, at: null })) },
    draw: (state) => {
      drawStock();
      for (const [x, y] of figure) {
        const [left, top] = [origin[0] + x * unit, origin[1] + y * unit];
        rect(left - 0.08, top - 0.08, unit + 0.16, unit + 0.16, { fill: "#2b3245" });
      }
      for (const [x, y] of figure) {
        const [left, top] = [origin[0] + x * unit, origin[1] + y * unit];
        rect(left + 0.03, top + 0.03, unit - 0.06, unit - 0.06, { fill: "#f7f9fc" });
      }
      state.pieces.forEach(({ at }, i) => {
        if (at) drawPiece(i, ...middle(i, at), unit);
        else drawPiece(i, pieces[i].x, STOCK.y + STOCK.h / 2, home);
      });
    },
    won: (state) => covered(state) === figure.length,
    score: (state) => covered(state) / figure.length,
    label: (state) => `Filled ${covered(state)}/${figure.length}`,
  });
}
