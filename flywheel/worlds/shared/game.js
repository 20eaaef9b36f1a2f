"use strict";
// What every game shares: its configuration, a seeded generator, drawing helpers and the state contract.

const config = JSON.parse(document.getElementById("config").textContent);

/** Mulberry32: a seeded generator of numbers in [0, 1); `flywheel.worlds.merge.board` has the same in Python. */
function prng(seed) {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** A new element inside `parent`. `name` makes it known to observers (window.__env__ and the recorder). */
function make(parent, className, name) {
  const node = document.createElement("div");
  node.className = className;
  if (name) node.dataset.el = name;
  parent.append(node);
  return node;
}

/** Put `node` at (x, y), in rem from the top left of its parent. */
function place(node, x, y) {
  node.style.left = `${x}rem`;
  node.style.top = `${y}rem`;
}

function icon(name) {
  return `<svg viewBox="0 0 24 24" width="100%" height="100%"><path d="${config.icons[name]}"/></svg>`;
}

/**
 * Publish the state contract. `game` has score() in [0, 1], terminated(), getState() (JSON values) and
 * setState(state), which draws that state.
 */
function publish(game) {
  window.__env__ = {
    version: config.version,
    seed: config.seed,
    level: config.level,
    get score() { return game.score(); },
    get terminated() { return game.terminated(); },
    getState: () => ({
      version: config.version, seed: config.seed, level: config.level,
      score: game.score(), terminated: game.terminated(), ...game.getState(),
    }),
    setState: (state) => game.setState(structuredClone(state)),
  };
}
