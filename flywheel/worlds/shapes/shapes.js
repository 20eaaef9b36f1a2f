"use strict";
// Shape fit: drag each piece into the outline of its shape; a drop anywhere else takes it back.

const board = document.getElementById("board");
const { pieces: layout, outlines, tolerance } = config.params;

let state = { pieces: layout.map((piece) => ({ ...piece, placed: false })) };
let held = null; // { piece, node, dx, dy }: what is dragged, and where it was gripped

const done = () => state.pieces.every((piece) => piece.placed);
const outlineOf = (piece) => outlines.find((outline) => outline.shape === piece.shape);

/** Pointer position in rem. */
function at(event) {
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  return { x: event.clientX / rem, y: event.clientY / rem };
}

function grip(event, piece, node) {
  if (piece.placed || done()) return;
  const { x, y } = at(event);
  held = { piece, node, dx: x - piece.x, dy: y - piece.y };
  event.preventDefault();
}

addEventListener("pointermove", (event) => {
  if (!held) return;
  const { x, y } = at(event);
  place(held.node, x - held.dx, y - held.dy);
});

addEventListener("pointerup", (event) => {
  if (!held) return;
  const { x, y } = at(event);
  const goal = outlineOf(held.piece);
  held.piece.placed = Math.hypot(x - held.dx - goal.x, y - held.dy - goal.y) <= tolerance;
  held = null;
  draw();
});

function draw() {
  board.replaceChildren();
  for (const outline of outlines) {
    const node = make(board, "outline", `outline ${outline.shape}`);
    node.innerHTML = icon(outline.shape);
    place(node, outline.x, outline.y);
  }
  for (const piece of state.pieces) {
    const spot = piece.placed ? outlineOf(piece) : piece;
    const node = make(board, `piece ${piece.colour}${piece.placed ? " placed" : ""}`, `piece ${piece.shape}`);
    node.innerHTML = icon(piece.shape);
    place(node, spot.x, spot.y);
    node.addEventListener("pointerdown", (event) => grip(event, piece, node));
  }
  if (done()) {
    const end = make(board, "block green");
    end.id = "end";
    end.textContent = "Well done!";
  }
}

publish({
  score: () => state.pieces.filter((piece) => piece.placed).length / state.pieces.length,
  terminated: done,
  getState: () => structuredClone(state),
  setState: (next) => {
    state = { pieces: next.pieces };
    draw();
  },
});
draw();
