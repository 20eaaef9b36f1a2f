"use strict";
// Tile triples: pick free tiles into the tray; three of a kind vanish; a full tray ends the game. `rules.py` has the
// same rules.

const { tiles: layout, slots, side } = config.params; // side: of a tile, in units
const W = 13.9;
const TRAY = { y: 9.65, h: 2.9 };
const SLOT = Math.min(2.3, (W - 0.6) / slots - 0.15);

/** Those of `tiles` that are left, each with whether none of a higher layer lies on it. */
function uncover(tiles) {
  const over = (one, other) => other.layer > one.layer &&
    Math.abs(other.x - one.x) < side - 0.01 && Math.abs(other.y - one.y) < side - 0.01;
  return tiles.map((one) => ({ ...one, free: !tiles.some((other) => over(one, other)) }));
}

function pick(id) {
  const tile = game.state.tiles.find((one) => one.id === id);
  if (!tile || !tile.free) return;
  game.move((state) => {
    state.tiles = uncover(state.tiles.filter((one) => one.id !== id));
    state.tray.push(tile.kind);
    if (state.tray.filter((kind) => kind === tile.kind).length === 3) {
      state.tray = state.tray.filter((kind) => kind !== tile.kind);
      state.triples += 1;
    }
  });
}

/** A rounded square of a kind, such as "red heart", `size` wide. */
function piece(x, y, size, kind, style) {
  const [colour, icon] = kind.split(" ");
  const node = group(style);
  rect(x, y, size, size, { r: 0.17 * size, fill: colour, stroke: "#1b1f27", width: 0.12, parent: node });
  symbol(icon, x + size / 2, y + size / 2, 0.66 * size, { fill: ink(colour), parent: node });
}

function drawBoard(state) {
  for (const one of [...state.tiles].sort((a, b) => a.layer - b.layer)) {
    piece(one.x, one.y, side, one.kind, { name: `tile ${one.id}`, look: one.free ? "" : "blocked" });
  }
  rect(0, TRAY.y, W, TRAY.h, { fill: "#2b3245", r: 0.5 });
  for (let i = 0; i < slots; i += 1) {
    const x = W / 2 + (i - slots / 2) * (SLOT + 0.15) + 0.075;
    const y = TRAY.y + (TRAY.h - SLOT) / 2;
    if (state.tray[i]) piece(x, y, SLOT, state.tray[i]);
    else rect(x, y, SLOT, SLOT, { fill: "#465069", r: 0.4 });
  }
}

openBoard(W, TRAY.y + TRAY.h);
onPointer({ click: (at) => at.name.startsWith("tile ") && pick(Number(at.name.slice(5))) });
startGame({
  state: { tiles: uncover(layout.map((one, id) => ({ id, ...one }))), tray: [], triples: 0 },
  draw: drawBoard,
  won: (state) => state.tiles.length === 0 && state.tray.length === 0,
  lost: (state) => state.tray.length >= slots,
  score: (state) => (3 * state.triples) / layout.length,
  label: (state) => `Triples ${state.triples}/${layout.length / 3}`,
  facts: () => ({ total: layout.length, slots }),
});
