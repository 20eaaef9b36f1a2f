// What happens on a page: its state, what input does to it, when it is over, and the state contract.

const config = JSON.parse(document.getElementById("config").textContent);
const params = { ...config.params, items: config.params.items.flatMap(expand) };
const stage = document.getElementById("stage");
const target = { ...params.start, ...params.goal };
const TICK = 100; // ms: of pages on which something comes by itself
const REST = 60; // ms without a key after which what was typed counts
const NAMES = { " ": "space", Escape: "esc" };
// `values` are what is asked for; `view` is what is open, shown, or under way.
let state = {
  values: structuredClone(params.start), view: structuredClone(params.view), scroll: {},
  focus: params.view.focused || "", caret: Array(2).fill((params.start[params.view.focused] || "").length),
  marked: [], clipboard: "", ticks: 0, held: "", typing: false, submitted: false, moves: 0,
};
let held = null; // what the pointer drags
let drawing = false;
let clocks = [];

const every = () => params.items.flatMap((item) => [item, ...(item.items || [])]);
const find = (name) => every().find((item) => item.name === name);
const bag = (key) => (key in state.values ? state.values : state.view); // where the value of a key is
const get = (key) => bag(key)[key];
const same = (a, b) => plain(a) === plain(b);
const plain = (value) => JSON.stringify(typeof value === "string" ? value.trim() : value);

function shown({ when, after }) {
  if (after !== undefined && state.ticks < after) return false;
  return !when || (Array.isArray(when[1]) ? when[1].includes(get(when[0])) : get(when[0]) === when[1]);
}

// -- the end ----------------------------------------------------------------------------------------------------------
const right = () => Object.keys(target).every((key) => same(state.values[key], target[key]));
const won = () => right() && !state.typing && (params.end !== "submit" || state.submitted);
function lost() {
  if (params.end === "submit") return state.submitted && !right();
  const { pressed } = state.values;
  if (params.end === "list") return !same(pressed, params.goal.pressed.slice(0, pressed.length));
  return params.end === "pick" && state.values.picked !== "" && !right();
}
const over = () => won() || lost();

/** Changes asked for and made, over all changes asked for or made; 1 only where it is won. */
function score() {
  if (won()) return 1;
  const keys = Object.keys(target);
  const asked = keys.filter((key) => !same(target[key], params.start[key]));
  const made = keys.filter((key) => !same(state.values[key], params.start[key]));
  const good = asked.filter((key) => same(state.values[key], target[key]));
  return Math.min(0.9, good.length / new Set([...asked, ...made]).size);
}

// -- drawing ----------------------------------------------------------------------------------------------------------
function draw() {
  keep();
  drawing = true;
  stage.replaceChildren(...params.items.filter(shown).map(drawn));
  for (const one of stage.querySelectorAll("[data-scroll]")) {
    one.scrollTop = (state.scroll[one.dataset.scroll] || 0) * size();
  }
  const field = stage.querySelector(`[data-key="${state.focus}"]`);
  if (field) {
    field.focus({ preventScroll: true });
    field.setSelectionRange(...state.caret);
  } else state.focus = "";
  const end = document.getElementById("end");
  end.hidden = !over();
  end.className = won() ? "won" : "lost";
  end.textContent = won() ? "Well done!" : "Not this.";
  drawing = false;
}

/** Pixels of a unit. */
const size = () => stage.getBoundingClientRect().width / 224;

/** What the browser keeps of a field, in the state. */
function keep() {
  const field = document.activeElement;
  if (field && field.dataset.key && field.dataset.key === state.focus) {
    state.caret = [field.selectionStart, field.selectionEnd];
  }
}

function change(make) {
  if (over()) return;
  make();
  state.moves += 1;
  draw();
}

// -- effects ----------------------------------------------------------------------------------------------------------
const EFFECTS = {
  set: (key, value) => { state.values[key] = value; if ("open" in state.view) state.view.open = ""; },
  toggle: (key) => { state.values[key] = !state.values[key]; },
  add: (key, by, low, high) => { bag(key)[key] = Math.min(high, Math.max(low, get(key) + by)); },
  next: (key, value) => { if (state.values[key] === value - 1) state.values[key] = value; },
  show: (key, value) => { state.view[key] = value; },
  fold: (key, value) => { state.view[key] = state.view[key] === value ? "" : value; },
  copy: (key) => { state.clipboard = get(key); },
  paste: (key) => { state.values[key] = state.clipboard; },
  submit: () => { state.submitted = true; },
};

/** What a click (double, right) on the element of that name does. */
function use(name, how) {
  const item = find(name);
  if (item && item[how]) change(() => EFFECTS[item[how][0]](...item[how].slice(1)));
  else if (how === "click" && state.view.open && !(item && item.kind === "field")) change(() => { state.view.open = ""; });
}

/** The element under the pointer; a label is a part of what it labels. */
function named(event) {
  const found = event.target instanceof Element && event.target.closest("[data-el], [data-labels]");
  return (found && (found.dataset.el || found.dataset.labels)) || "";
}
const point = (event) => {
  const box = stage.getBoundingClientRect();
  return [(event.clientX - box.x) / size(), (event.clientY - box.y) / size()];
};
const inside = ([x, y], [left, top, w, h]) => x >= left && y >= top && x <= left + w && y <= top + h;

addEventListener("click", (event) => { if (!params.keys_only) use(named(event), "click"); });
addEventListener("dblclick", (event) => {
  const word = named(event);
  if (word.startsWith("word ") && params.marks) change(() => mark(Number(word.slice(5)), Number(word.slice(5))));
  else use(word, "double");
});
addEventListener("contextmenu", (event) => {
  event.preventDefault();
  use(named(event), "right");
});

// -- drags ------------------------------------------------------------------------------------------------------------
const DROPS = {
  piece(item, to) {
    const zone = params.items.find((one) => one.kind === "zone" && inside(to, one.box));
    if (zone) change(() => { state.values[item.key] = zone.name; });
  },
  slider(item, to) {
    const [x, , w, h] = item.box;
    const share = Math.min(1, Math.max(0, (to[0] - x - h / 2) / (w - h)));
    const steps = Math.round((share * (item.high - item.low)) / item.step);
    change(() => { state.values[item.key] = item.low + steps * item.step; });
  },
  rows(item, to, words) {
    const list = get(item.key).filter((one) => one !== words);
    const place = Math.floor(((to[1] - item.box[1]) / item.box[3]) * (list.length + 1));
    list.splice(Math.min(list.length, Math.max(0, place)), 0, words);
    if (!same(list, get(item.key))) change(() => { state.values[item.key] = list; });
  },
  ends(item, to) {
    const other = params.items.find((one) => one.drag === "ends" && one !== item && inside(to, one.box));
    if (other) change(() => { state.values.line = [item.name, other.name].sort(); });
  },
  word(item, to, word, event) {
    const last = named(event);
    if (last.startsWith("word ") && last !== word) {
      const both = [word, last].map((name) => Number(name.slice(5))).sort((a, b) => a - b);
      change(() => mark(...both));
    }
  },
};

function mark(from, to) {
  state.marked = [from, to];
  bag("selected").selected = params.items.find((item) => item.kind === "words").list.slice(from, to + 1).join(" ");
}

function grip(name) {
  if (name.startsWith("word ") && params.marks) return { item: null, drop: DROPS.word, extra: name };
  const rows = name.startsWith("row ") && params.items.find((item) => item.kind === "rows");
  if (rows) return { item: rows, drop: DROPS.rows, extra: name.slice(4) };
  const item = find(name);
  const drop = item && DROPS[item.drag || item.kind];
  return drop && { item, drop };
}

addEventListener("mousedown", (event) => {
  if (params.keys_only) event.preventDefault();
});
addEventListener("pointerdown", (event) => {
  held = null;
  if (over() || event.button !== 0 || params.keys_only) return;
  const gripped = grip(named(event));
  if (gripped) held = { ...gripped, from: point(event), node: event.target.closest("[data-el]") };
});
addEventListener("pointermove", (event) => {
  if (!held || !["piece", "rows"].includes(held.item?.kind)) return;
  const [x, y] = point(event), dx = held.item.kind === "rows" ? 0 : x - held.from[0];
  held.node.classList.add("held");
  held.node.style.transform = `translate(${unit(dx)}, ${unit(y - held.from[1])})`;
});
addEventListener("pointerup", (event) => {
  if (!held) return;
  const { item, drop, extra } = held;
  held = null;
  drop(item, point(event), extra, event);
  if (stage.querySelector(".held")) draw(); // what was dropped nowhere goes back
});
addEventListener("pointercancel", () => { held = null; draw(); });

// -- keys -------------------------------------------------------------------------------------------------------------
/** Such as `ctrl+s`, `left`, `a`; "" for a modifier alone. */
function chord(event) {
  if (["Control", "Shift", "Alt", "Meta"].includes(event.key)) return "";
  const key = NAMES[event.key] || event.key.replace("Arrow", "").toLowerCase();
  const shift = event.shiftKey && (key.length > 1 || event.ctrlKey); // else it makes another letter
  const modifiers = [["ctrl", event.ctrlKey], ["alt", event.altKey], ["shift", shift]];
  return [...modifiers.filter(([, on]) => on).map(([name]) => name), key].join("+");
}

addEventListener("keydown", (event) => {
  const keys = chord(event), field = document.activeElement?.dataset.key ? document.activeElement : null;
  if (!keys || over()) return;
  if (params.listens) {
    event.preventDefault();
    change(() => state.values.pressed.push(keys));
  } else if (params.hold === keys && !event.repeat) {
    event.preventDefault();
    change(() => { state.held = keys; });
  } else if (params.keys?.[keys]) {
    event.preventDefault();
    change(() => EFFECTS[params.keys[keys][0]](...params.keys[keys].slice(1)));
  } else if (keys === "enter" && field && find(field.dataset.el).enter) {
    change(() => EFFECTS.submit());
  } else if (keys === "ctrl+c" || keys === "ctrl+x") {
    event.preventDefault();
    const text = field ? field.value.slice(field.selectionStart, field.selectionEnd) : get("selected") || "";
    if (text) change(() => { state.clipboard = text; });
  } else if (keys === "ctrl+v") {
    event.preventDefault();
    if (field) {
      field.setRangeText(state.clipboard, field.selectionStart, field.selectionEnd, "end");
      typed(field);
    }
  }
});
addEventListener("keyup", (event) => {
  if (!state.held || chord(event) !== state.held) return;
  const [low, high] = params.items.find((item) => item.kind === "bar").goal;
  change(() => {
    state.held = "";
    if (state.view.bar > low) state.values.picked = state.view.bar < high ? "in" : "over";
  });
});

function typed(field) {
  if (over()) {
    field.value = state.values[field.dataset.key];
    return;
  }
  change(() => {
    state.values[field.dataset.key] = field.value;
    state.typing = true;
  });
  run();
}
addEventListener("input", (event) => typed(event.target));
addEventListener("focusin", (event) => look(event.target.dataset.key || ""));
addEventListener("focusout", () => look(""));
function look(key) {
  if (drawing) return;
  state.focus = key;
  if ("focus" in state.values && !over()) {
    state.values.focus = key;
    if (over()) draw();
  }
}
addEventListener("scroll", (event) => {
  const name = event.target.dataset?.scroll;
  if (name && !drawing) state.scroll[name] = Math.round((event.target.scrollTop / size()) * 100) / 100;
}, true);

// -- time -------------------------------------------------------------------------------------------------------------
function run() {
  for (const clock of clocks) clearTimeout(clock);
  clocks = [];
  if (state.typing) {
    clocks.push(setTimeout(() => {
      state.typing = false;
      draw();
    }, REST));
  }
  if (params.ticks && !over()) {
    clocks.push(setTimeout(() => {
      state.ticks = Math.min(params.ticks, state.ticks + 1);
      if (state.held) state.view.bar = Math.min(params.most, state.view.bar + 1);
      if (state.held || params.items.some((item) => item.after === state.ticks)) draw();
      if (state.ticks < params.ticks) run();
    }, TICK));
  }
}

// -- the contract -----------------------------------------------------------------------------------------------------
function frame() {
  const box = stage.getBoundingClientRect();
  const share = (value, whole) => Math.round((value / whole) * 1e5) / 1e5;
  return {
    x: share(box.x, innerWidth), y: share(box.y, innerHeight), w: share(box.width, innerWidth),
    h: share(box.height, innerHeight), cols: 224, rows: 224,
  };
}

window.__env__ = {
  version: config.version,
  seed: config.seed,
  level: config.level,
  get score() { return score(); },
  lives: null,
  get terminated() { return over(); },
  getState() {
    keep();
    return {
      version: config.version, seed: config.seed, level: config.level, score: score(), won: won(), lost: lost(),
      terminated: over(), frame: frame(), ...structuredClone(state),
    };
  },
  /** Back to what getState gave. */
  setState(given) {
    document.activeElement?.blur();
    for (const key of Object.keys(state)) state[key] = structuredClone(given[key]);
    held = null;
    draw();
    run();
  },
};
for (const name of params.look.classes) stage.classList.add(name);
stage.style.background = params.look.ground;
document.body.style.setProperty("--accent", params.look.accent);
document.body.style.setProperty("--round", unit(params.look.round));
draw();
run();
