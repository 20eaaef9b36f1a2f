// What stands on a page, drawn from its params and the state alone. Boxes are [x, y, w, h] in units of the page.

const SVG = "http://www.w3.org/2000/svg";
const MORE_ICONS = {
  ring: "M12 2a10 10 0 1 0 .01 0zM12 7a5 5 0 1 1-.01 0z", hexagon: "M7 3h10l5 9-5 9H7l-5-9z", bar: "M1 8h22v8H1z",
  arrow: "M2 9h10V3l10 9-10 9v-6H2z", cancel: "M5 2l7 7 7-7 3 3-7 7 7 7-3 3-7-7-7 7-3-3 7-7-7-7z",
  down: "M3 7h18l-9 11z", check: "M3 12l3-3 4 4L18 4l3 3-11 12z", minus: "M3 10h18v4H3z",
  plus: "M10 3h4v7h7v4h-7v7h-4v-7H3v-4h7z",
};
const DASHED = { stroke: "#444c5c", "stroke-width": 1.6, "stroke-dasharray": "2.5 1.5" };
const unit = (value) => `calc(${value} * var(--u))`;

/** A node at a box: classes, and words in it as text. */
function node([x, y, w, h], look = "", words = "", tag = "div") {
  const made = document.createElement(tag);
  made.className = look;
  Object.assign(made.style, { left: unit(x), top: unit(y), width: unit(w), height: unit(h) });
  if (words !== "") {
    made.classList.add("text");
    made.textContent = words;
  }
  return made;
}

function icon(name, [x, y, w, h], fill, more = {}) {
  const drawn = document.createElementNS(SVG, "svg");
  drawn.setAttribute("viewBox", "0 0 24 24");
  Object.assign(drawn.style, { left: unit(x), top: unit(y), width: unit(w), height: unit(h) });
  const path = document.createElementNS(SVG, "path");
  const all = { d: config.icons[name] || MORE_ICONS[name], fill, "fill-rule": "evenodd", ...more };
  for (const [key, value] of Object.entries(all)) path.setAttribute(key, value);
  drawn.append(path);
  return drawn;
}

const inset = ([, , w, h], share) => [w * share, h * share, w * (1 - 2 * share), h * (1 - 2 * share)];
const filled = (made, item) => {
  if (item.fill) Object.assign(made.style, { background: item.fill, color: item.ink || "#fff" });
  if (item.font) made.style.fontSize = unit(item.font);
  return made;
};

// kind -> node. Each item has `box`, most have `name` (the element's) and effects: click, double, right.
const KINDS = {
  ground: (item) => filled(node(item.box, `ground ${item.look || ""}`), item),
  text: (item) => filled(node(item.box, item.look ?? "start", item.words), { ...item, fill: "" }),
  card: (item) => filled(node(item.box, `card ${item.look || ""}`, item.words ?? ""), item),
  button: (item) => filled(node(item.box, `button ${item.look || ""}`, item.words ?? ""), item),
  link: (item) => node(item.box, "link", item.words),
  tab: (item) => node(item.box, "tab", item.words),
  cell: (item) => node(item.box, "cell", item.words ?? ""),
  shown: (item) => filled(node(item.box, item.look || "", String(get(item.key))), item),
  shape(item) {
    const made = node(item.box, "item");
    const line = item.dashed ? DASHED : { stroke: "#1b1f27", "stroke-width": 1 };
    made.append(icon(item.icon, inset(item.box, 0), item.fill || "none", item.bare ? {} : line));
    return made;
  },
  block(item) {
    const made = filled(node(item.box, `card ${item.look || ""}`), item);
    made.append(icon(item.icon, inset(item.box, 0.18), item.ink || "#fff"));
    return made;
  },
  rating(item) {
    const made = node(item.box, "item");
    const fill = get(item.key) >= item.value ? "#f5b301" : "#ffffff";
    made.append(icon("star", inset(item.box, 0.04), fill, { stroke: "#6b5a1e", "stroke-width": 1.2 }));
    return made;
  },
  switch(item) {
    const on = get(item.key), [, , w, h] = item.box;
    const made = node(item.box, on ? "switch on" : "switch");
    made.append(node([on ? w - h + 2 : 2, 2, h - 4, h - 4], "knob"));
    return made;
  },
  box(item) {
    const on = get(item.key), made = node(item.box, on ? "box on" : "box");
    if (on) made.append(icon("check", [0, 0, item.box[2] - 4, item.box[3] - 4], "#fff"));
    return made;
  },
  dot(item) {
    const on = get(item.key) === item.value, made = node(item.box, on ? "dot on" : "dot");
    if (on) made.append(node([item.box[2] / 2 - 6, item.box[3] / 2 - 6, 8, 8], "knob"));
    return made;
  },
  field(item) {
    const made = node(item.box, "", "", "input");
    made.value = get(item.key);
    made.dataset.key = item.key;
    made.autocomplete = "off";
    made.spellcheck = false;
    return made;
  },
  slider(item) {
    const made = node(item.box, "item"), [, , w, h] = item.box;
    const share = (get(item.key) - item.low) / (item.high - item.low);
    const at = h / 2 + share * (w - h);
    made.append(node([0, h / 2 - 3, w, 6], "track"), node([0, h / 2 - 3, at, 6], "done"));
    made.append(node([at - h / 2, 0, h, h], "handle"));
    return made;
  },
  piece(item) {
    const home = get(item.key) ? placed(item) : item.box;
    const made = node(home, "piece");
    made.append(icon(item.icon, inset(home, 0.06), item.fill, { stroke: "#1b1f27", "stroke-width": 1 }));
    return made;
  },
  zone(item) {
    const made = item.icon ? node(item.box, "item") : node(item.box, "zone", item.words ?? "");
    made.style.alignItems = "flex-end"; // its word stands below what lies in it
    if (item.icon) made.append(icon(item.icon, inset(item.box, 0), "#ffffff55", DASHED));
    if (item.fill) Object.assign(made.style, { borderColor: item.fill, borderStyle: "solid" });
    return made;
  },
  rows(item) {
    const made = node(item.box), height = item.box[3] / get(item.key).length;
    get(item.key).forEach((words, place) => {
      const row = node([0, place * height + 1, item.box[2], height - 3], "row", words);
      row.dataset.el = `row ${words}`;
      made.append(row);
    });
    return made;
  },
  line(item) {
    const made = node([0, 0, 224, 224]), [a, b] = get(item.key).map((name) => center(find(name).box));
    made.style.pointerEvents = "none";
    if (a && b) made.append(icon("bar", [0, 0, 224, 224], "none", {
      d: `M${a.map((v) => (v * 24) / 224).join(" ")}L${b.map((v) => (v * 24) / 224).join(" ")}`, stroke: item.fill,
      "stroke-width": 0.6,
    }));
    return made;
  },
  key(item) {
    const pressed = get("pressed")[item.index] ?? "";
    const made = node(item.box, pressed ? "card framed" : "cell", pressed);
    made.style.fontSize = unit(pressed.length > 8 ? 9 : pressed.length > 3 ? 11 : 15);
    return filled(made, { fill: "#ffffff", ink: "#1b1f27" });
  },
  spot: (item) => node(item.box),
  marker(item) {
    const [x, y] = item.box, [col, row] = [get("col"), get("row")];
    const made = node([x + col * item.side, y + row * item.side, item.side, item.side]);
    made.append(icon(item.icon, [3, 3, item.side - 6, item.side - 6], item.fill, { stroke: "#1b1f27" }));
    return made;
  },
  bar(item) {
    const made = node(item.box, "ground"), [, , w, h] = item.box;
    const [low, high] = item.goal;
    made.append(filled(node([(w * low) / item.most, 0, (w * (high - low)) / item.most, h]), { fill: item.fill }));
    made.append(node([0, h / 4, (w * get(item.key)) / item.most, h / 2], "done"));
    return made;
  },
  words(item) {
    const made = node(item.box, "words"), [from, to] = state.marked;
    item.list.forEach((word, number) => {
      const span = document.createElement("span");
      span.textContent = word;
      span.dataset.el = `word ${number}`;
      if (item.links) {
        if (item.links.includes(number)) span.className = "link";
      } else if (from !== undefined && number >= from && number <= to) span.className = "marked";
      made.append(span, " ");
    });
    return made;
  },
  scroller(item) {
    const made = node(item.box, "scroller");
    made.dataset.scroll = item.name;
    made.append(...item.items.map(drawn), node([0, item.height - 1, 1, 1]));
    return made;
  },
};

/** What an item stands for: a month for its days. */
function expand(item) {
  if (item.kind !== "month") return [item];
  const [x, y] = item.box;
  return Array.from({ length: item.days }, (_, index) => {
    const cell = index + item.before, name = `${item.month} ${index + 1}`;
    return {
      kind: "card", box: [x + (cell % 7) * 28, y + Math.floor(cell / 7) * 25, 26, 23], name, words: String(index + 1),
      fill: "#eef1f6", ink: "#1b1f27", font: 13, look: "item", when: item.when, click: ["set", "picked", name],
      lit: ["picked", name],
    };
  });
}

const center = ([x, y, w, h]) => [x + w / 2, y + h / 2];

/** Where a piece lies that was put into a zone: in its middle, beside those that lie there. */
function placed(item) {
  const zone = find(get(item.key)), [x, y] = center(zone.box), [, , w, h] = item.box;
  const there = params.items.filter((other) => other.kind === "piece" && get(other.key) === zone.name);
  const shift = zone.icon ? 0 : (there.indexOf(item) - (there.length - 1) / 2) * w * 0.8;
  return [x - w / 2 + shift, y - h / 2, w, h];
}

function drawn(item) {
  const made = KINDS[item.kind](item);
  if (item.name && item.kind !== "spot") made.dataset.el = item.name;
  if (item.labels) made.dataset.labels = item.labels;
  if (item.lit && get(item.lit[0]) === item.lit[1]) made.classList.add("lit");
  return made;
}
