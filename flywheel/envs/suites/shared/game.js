"use strict";
// What every game shares: its configuration, a seeded generator, its one state and the state contract.

const config = JSON.parse(document.getElementById("config").textContent);

/** Mulberry32: a seeded generator of numbers in [0, 1); `flywheel.envs.suites.prng` has the same in Python. */
function prng(seed) {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

// The game that runs. `state` is all that changes: JSON values, `moves` among them.
const game = {
  state: {},
  rules: null,
  get over() { return game.rules.won() || game.rules.lost(); },

  /** A move of the player's: `change(state)` makes it, then it is counted and drawn. */
  move(change) {
    change(game.state);
    game.state.moves += 1;
    game.draw();
  },

  /** A change that is no move, such as a selection. */
  touch(change) {
    change(game.state);
    game.draw();
  },

  draw() {
    const { state, rules } = game;
    clearBoard();
    rules.draw(state);
    const say = (id, words) => { document.getElementById(id).textContent = words; };
    say("level", `Level ${config.level}`);
    say("label", rules.label ? rules.label(state) : `Score ${Math.round(100 * rules.score())}`);
    say("moves", `Moves ${state.moves}`);
    const end = document.getElementById("end");
    end.hidden = !game.over;
    end.className = rules.won() ? "won" : "lost";
    end.textContent = rules.won() ? "Well done!" : "Game over";
  },
};

/**
 * Start the game. `rules` has:
 *   state      the state at the beginning, JSON values
 *   draw       draw(state), from the state alone
 *   score      score(state) in [0, 1], 1 only where won
 *   won, lost  of the state; lost may be left out where a game cannot be lost
 *   label      words in the middle of the header line (left out: the score in percent)
 *   facts      facts(state): what observers may read beside the state (left out: nothing)
 */
function startGame(rules) {
  const own = (method, otherwise) => (rules[method] ? () => rules[method](game.state) : () => otherwise);
  game.rules = { ...rules, score: own("score"), won: own("won", false), lost: own("lost", false) };
  game.state = { ...structuredClone(rules.state), moves: 0 };
  const facts = own("facts", {});
  window.__env__ = {
    version: config.version,
    seed: config.seed,
    level: config.level,
    get score() { return game.rules.score(); },
    get lives() { return game.state.lives ?? null; },
    get terminated() { return game.over; },
    getState: () => ({
      version: config.version, seed: config.seed, level: config.level, score: game.rules.score(),
      won: game.rules.won(), lost: game.rules.lost(), terminated: game.over, frame: frame(),
      ...structuredClone(game.state), ...structuredClone(facts()),
    }),
    /** Back to what getState gave: of its keys, those that the game's state has. */
    setState: (given) => {
      for (const key of Object.keys(game.state)) game.state[key] = structuredClone(given[key]);
      dropHeld();
      game.draw();
    },
  };
  game.draw();
}
