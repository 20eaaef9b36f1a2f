"use strict";
// Shape fit, first levels: drag each piece into the outline of its shape; a drop anywhere else takes it back.

const WIDTH = 13.9;
const STOCK = { y: 8.3, h: 4.35 };
const SIZE = 3.8; // of a shape

const drawStock = () => rect(0, STOCK.y, WIDTH, STOCK.h, { fill: "#b9c4da", r: 0.5 });

function fit({ pieces, outlines, tolerance }) {
  const outlineOf = (piece) => outlines.find((outline) => outline.shape === piece.shape);
  const pieceAt = (name) => game.state.pieces.find((piece) => `piece ${piece.shape}` === name && !piece.placed);

  function drawPiece(piece, { x, y }) {
    const node = group({ name: `piece ${piece.shape}`, look: piece.placed ? "" : "movable" });
    rect(x - SIZE / 2, y - SIZE / 2, SIZE, SIZE, { fill: "transparent", parent: node });
    symbol(piece.shape, x, y, SIZE, { fill: piece.colour, stroke: "#1b1f27", width: 0.8, parent: node });
  }

  onPointer({
    lift: (from) => (pieceAt(from.name) ? document.querySelector(`[data-el="${from.name}"]`) : null),
    drop: (from, to) => {
      const piece = pieceAt(from.name);
      if (!piece) return;
      const goal = outlineOf(piece);
      const near = Math.hypot(piece.x + to.x - from.x - goal.x, piece.y + to.y - from.y - goal.y) <= tolerance;
      if (near) game.move(() => { piece.placed = true; });
    },
  });
  const count = (state) => state.pieces.filter((piece) => piece.placed).length;
  startGame({
    state: { pieces: pieces.map((piece) => ({ ...piece, placed: false })) },
    draw: (state) => {
      drawStock();
      for (const { shape, x, y } of outlines) {
        const style = { fill: "#f7f9fc", stroke: "#1b1f27", width: 1.2, "stroke-dasharray": "2 1.4" };
        symbol(shape, x, y, SIZE, { ...style, name: `outline ${shape}` });
      }
      for (const piece of state.pieces) drawPiece(piece, piece.placed ? outlineOf(piece) : piece);
    },
    won: (state) => count(state) === pieces.length,
    score: (state) => count(state) / pieces.length,
    label: (state) => `Shapes ${count(state)}/${pieces.length}`,
  });
}
