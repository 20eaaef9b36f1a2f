"use strict";
// Tile triples: pick free tiles into the tray; three of a kind vanish; a full tray ends the game.

const board = document.getElementById("board");
const tray = document.getElementById("tray");
const { tiles: layout, slots } = config.params;
const triples = layout.length / 3;

let state = {
  tiles: layout.map((tile, id) => ({ id, ...tile, gone: false })),
  tray: [],
  triples: 0,
};

const left = () => state.tiles.filter((tile) => !tile.gone);
const lost = () => state.tray.length >= slots;
const won = () => state.triples === triples;

/** A tile is free where no tile of a higher layer lies on it. */
function free(tile) {
  return !left().some((other) => other.layer > tile.layer &&
    Math.abs(other.x - tile.x) < 2.9 && Math.abs(other.y - tile.y) < 2.9);
}

function pick(tile) {
  if (won() || lost() || tile.gone || !free(tile)) return;
  tile.gone = true;
  state.tray.push(tile.kind);
  if (state.tray.filter((kind) => kind === tile.kind).length === 3) {
    state.tray = state.tray.filter((kind) => kind !== tile.kind);
    state.triples += 1;
  }
  draw();
}

function draw() {
  board.replaceChildren();
  for (const tile of [...left()].sort((a, b) => a.layer - b.layer)) {
    const [colour, shape] = tile.kind.split(" ");
    const node = make(board, `tile block ${colour}${free(tile) ? "" : " covered"}`, `tile ${tile.id}`);
    place(node, tile.x, tile.y);
    node.innerHTML = icon(shape);
    node.addEventListener("click", () => pick(tile));
  }
  tray.replaceChildren();
  for (let i = 0; i < slots; i += 1) {
    const [colour, shape] = (state.tray[i] || "").split(" ");
    const node = make(tray, shape ? `slot block ${colour}` : "slot");
    if (shape) node.innerHTML = icon(shape);
  }
  if (won() || lost()) {
    const end = make(document.body, `block ${won() ? "green" : "red"}`);
    end.id = "end";
    end.textContent = won() ? "All clear!" : "Tray full";
  } else {
    document.getElementById("end")?.remove();
  }
}

publish({
  score: () => state.triples / triples,
  terminated: () => won() || lost(),
  getState: () => ({
    ...state, tiles: left().map((tile) => ({ ...tile, free: free(tile) })), total: layout.length, slots, lost: lost(),
  }),
  setState: (next) => {
    const there = new Set(next.tiles.map((tile) => tile.id));
    state = {
      tiles: layout.map((tile, id) => ({ id, ...tile, gone: !there.has(id) })), tray: next.tray, triples: next.triples,
    };
    draw();
  },
});
draw();
