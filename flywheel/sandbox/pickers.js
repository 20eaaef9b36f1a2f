// The pickers of native form controls, drawn in a page of the sandbox's own that is laid over the session's: they look
// and act like those of the browser, which are windows that nobody draws here. Time stands still: nothing moves by itself.
(() => {
  "use strict";
  const style = document.createElement("style");
  style.textContent = `
    html, body { margin: 0; height: 100%; overflow: hidden; background: #fff; cursor: default; user-select: none; }
    #picker { position: absolute; box-sizing: border-box; overflow: hidden; border: 1px solid #767676; background: #fff;
      color: #101010; font: 12px sans-serif; outline: none; }
    .rows { overflow: hidden auto; }
    .row { padding: .25em .35em; min-height: 1.2em; line-height: 1.2; white-space: pre; overflow: hidden; }
    .row.in { padding-inline-start: 1.6em; }
    .row.group { font-weight: bold; }
    .row.off { color: #8a8a8a !important; }
    .row.on { background: #1967d2 !important; color: #fff !important; }
    .line { height: 1px; margin: .3em 0; background: #aaa; }
    .side { display: flex; }
    .calendar { padding: 8px; width: 220px; }
    .head, .foot { display: flex; align-items: center; gap: 6px; height: 30px; padding: 0 6px; }
    .head b { flex: 1; }
    .head .step { width: 28px; height: 28px; line-height: 28px; text-align: center; font-size: 16px; }
    .foot { justify-content: space-between; color: #0074cc; }
    .grid { display: grid; text-align: center; line-height: 27px; }
    .cell { border: 1px solid transparent; border-radius: 2px; height: 27px; }
    .cell.pale { color: #777; } .cell.off { color: #bbb; } .cell.today { border-color: #767676; }
    .cell.on { background: #0075ff; color: #fff; font-weight: bold; }
    .cell.at { outline: 2px solid #101010; outline-offset: -2px; }
    .times { display: flex; padding: 4px; gap: 2px; }
    .column { width: 52px; height: 244px; overflow: hidden auto; text-align: center; font-size: 14px; line-height: 36px; }
    .column .cell { height: 34px; line-height: 34px; }
    .colour { width: 232px; }
    .square { position: relative; height: 138px; background:
      linear-gradient(transparent, #000), linear-gradient(90deg, #fff, transparent), var(--hue); }
    .square i, .hue i { position: absolute; width: 12px; height: 12px; margin: -7px; border: 2px solid #fff;
      border-radius: 50%; box-shadow: 0 0 2px #000; }
    .hue { position: relative; margin: 14px 16px; height: 12px;
      background: linear-gradient(90deg, #f00, #ff0, #0f0, #0ff, #00f, #f0f, #f00); }
    .hue i { top: 6px; }
    .channels { display: flex; gap: 6px; padding: 0 16px 10px; align-items: center; }
    .channels .chip { width: 30px; height: 30px; border-radius: 50%; border: 1px solid #aaa; flex: none; }
    .channels label { flex: 1; text-align: center; }
    .channels input { width: 100%; box-sizing: border-box; text-align: center; font: inherit; height: 26px; border: 1px solid #767676; }
    .swatches { display: flex; flex-wrap: wrap; gap: 4px; padding: 0 16px 10px; }
    .bubble { display: flex; gap: 8px; align-items: center; max-width: 260px; padding: 8px; font-size: 13px; }
    .bubble b { flex: none; width: 20px; line-height: 20px; text-align: center; background: #ed6f1e; color: #fff; }
    .swatches i { width: 20px; height: 20px; border: 1px solid #767676; }`;
  document.head.append(style);

  const make = (tag, name = "", text = "", ...inside) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text) node.textContent = text;
    node.append(...inside);
    return node;
  };
  let shown = null; // what is drawn: { model, anchor, node, key(event), state }
  let said = { value: null, over: false, on: false }; // since it was asked last: what was chosen, is it all, keys go on
  const say = (value, over = true) => { said = { ...said, value, over: said.over || over }; };
  const leave = (on = false) => { said = { ...said, over: true, on }; };

  // -- a list: the options of a select, the suggestions of a field -------------------------------------------------
  const list = (model, kept) => {
    const suggests = model.kind === "suggestions";
    const node = make("div", "rows"), free = (row) => !row.line && !row.group && !row.disabled;
    const rows = model.rows.map((row, n) => {
      if (row.line) return make("div", "line");
      const drawn = make("div", `row${row.group ? " group" : ""}${row.inGroup ? " in" : ""}${row.disabled ? " off" : ""}`, row.text);
      if (!suggests) Object.assign(drawn.style, { color: row.color, background: row.background, fontWeight: row.group ? "" : row.bold });
      if (free(row)) {
        drawn.onmousemove = () => point(n);
        drawn.onmouseup = () => choose(n);
      }
      return drawn;
    });
    node.append(...rows);
    Object.assign(node.style, { font: `${model.weight} ${model.size}px ${model.family}`, direction: model.rtl ? "rtl" : "ltr" });
    let at = kept?.at ?? model.rows.findIndex((row) => row.chosen), typed = kept?.typed ?? "";
    const point = (n, scroll = false) => {
      if (rows[at]) rows[at].classList.remove("on");
      at = n;
      if (!rows[at]) return;
      rows[at].classList.add("on");
      if (scroll) rows[at].scrollIntoView({ block: "nearest" });
    };
    const choose = (n) => {
      const row = model.rows[n];
      if (!row || !free(row)) leave(suggests);
      else if (suggests) say(row.value);
      else if (row.at !== model.value) say(row.at);
      else leave();
    };
    const go = (by, from = at) => {
      for (let n = from + by, last = from; n >= 0 && n < rows.length; n += by) {
        if (free(model.rows[n])) return point(n, true);
        last = n;
      }
    };
    const far = (by) => { for (let n = 0; n < 10; n++) go(by); };
    const spell = (letter) => {
      typed = [...typed].every((one) => one === letter) ? letter : typed + letter;
      const from = typed.length > 1 ? at : at + 1;
      for (let n = 0; n < rows.length; n++) {
        const here = (max(from, 0) + n) % rows.length, row = model.rows[here];
        if (free(row) && row.text.trim().toLowerCase().startsWith(typed)) return point(here, true);
      }
    };
    const key = (event) => {
      const { key: name, altKey, ctrlKey } = event;
      if (name === "Escape") leave();
      else if (name === "Enter" || name === "F4" || (altKey && /^Arrow(Up|Down)$/.test(name))) choose(at);
      else if (name === "Tab") { choose(at); said.on = true; }
      else if (name === "ArrowDown" || (!suggests && name === "ArrowRight")) go(1);
      else if (name === "ArrowUp" || (!suggests && name === "ArrowLeft")) go(-1);
      else if (name === "Home") go(1, -1);
      else if (name === "End") go(-1, rows.length);
      else if (name === "PageDown") far(1);
      else if (name === "PageUp") far(-1);
      else if (name.length === 1 && !ctrlKey && !suggests && (name !== " " || typed)) spell(name.toLowerCase());
      else if (name === " ") choose(at);
    };
    const placed = () => {
      node.scrollTop = kept?.scroll ?? 0;
      if (!kept) point(at, true);
      else point(at);
    };
    return { node, key, placed, keep: () => ({ at, typed, scroll: node.scrollTop }) };
  };

  // -- days, weeks, months -----------------------------------------------------------------------------------------
  const { max, min, floor, round } = Math, DAY = 86400000;
  const NAMES = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December"];
  const two = (number) => String(number).padStart(2, "0");
  const dayOf = (year, month, date = 1) => { // a day is its number since 1970
    const made = new Date(0);
    made.setUTCFullYear(year, month, date);
    return made.getTime() / DAY;
  };
  const parts = (day) => {
    const made = new Date(day * DAY);
    return { year: made.getUTCFullYear(), month: made.getUTCMonth(), date: made.getUTCDate(), weekday: made.getUTCDay() };
  };
  const dayText = (day) => {
    const { year, month, date } = parts(day);
    return `${String(year).padStart(4, "0")}-${two(month + 1)}-${two(date)}`;
  };
  const weekText = (day) => { // the ISO week is the year's that its Thursday is in
    const thursday = day - (parts(day).weekday + 6) % 7 + 3, { year } = parts(thursday);
    return `${String(year).padStart(4, "0")}-W${two(floor((thursday - dayOf(year, 0)) / 7) + 1)}`;
  };
  const units = { // of each type: a value's first day and back, and the day that a move by one goes to
    date: { parse: (text) => Date.parse(text) / DAY, text: dayText, today: "Today" },
    week: {
      parse: (text) => {
        const [, year, week] = /^(\d+)-W(\d\d)$/.exec(text) ?? [], fourth = year && dayOf(year, 0, 4);
        return year ? fourth - (parts(fourth).weekday + 6) % 7 + 7 * (week - 1) : NaN;
      },
      text: weekText, today: "This week",
    },
    month: { parse: (text) => Date.parse(text) / DAY, text: (day) => dayText(day).slice(0, -3), today: "This month" },
  };
  const calendar = (model, kept, unit, picked) => {
    const { parse, text, today } = units[unit], now = parse(text(Date.parse(model.today) / DAY));
    const clip = (value) => (unit === "date" ? value.slice(0, 10) : value);
    const value = parse(clip(model.value)), least = parse(clip(model.min)), most = parse(clip(model.max));
    const wide = { date: 1, week: 7 }[unit];
    const step = wide && floor(Number(model.step)) > 1 ? wide * floor(Number(model.step)) : 0;
    const base = least === least ? least : unit === "week" ? -3 : 0; // what steps are counted from
    const off = (day) => day < least || day > most || (step && (day - base) % step !== 0);
    const fit = (day) => min(max(day, least === least ? least : day), most === most ? most : day);
    let at = kept?.at ?? (value === value ? value : fit(now)), months = kept?.months ?? unit === "month";
    let page = kept?.page ?? at; // a day of the month, or year, that is seen
    const node = make("div", "calendar");
    const choose = (day) => { if (!off(day)) { at = day; picked(text(day)); } };
    const cell = (day, name, here, extra = "") => {
      const made = make("div", `cell ${extra}${off(day) ? " off" : ""}`, name);
      if (parse(text(day)) === now && !months) made.classList.add("today");
      if (value === value && text(day) === text(value)) made.classList.add("on");
      if (here) made.classList.add("at");
      return made;
    };
    const move = (by) => {
      const { year, month } = parts(page);
      page = months ? dayOf(year + by, month) : dayOf(year, month + by);
      draw();
    };
    const draw = () => {
      const { year, month } = parts(page), grid = make("div", "grid");
      const title = make("b", "", months ? String(year) : `${NAMES[month]} ${year} ▾`);
      const up = make("div", "step", "↑"), down = make("div", "step", "↓");
      [up.onclick, down.onclick] = [() => move(-1), () => move(1)];
      if (unit !== "month") title.onclick = () => { months = !months; draw(); };
      if (months) {
        grid.style.gridTemplateColumns = "repeat(4, 1fr)";
        for (let n = 0; n < 12; n++) {
          const day = dayOf(year, n);
          const own = unit === "month";
          const made = cell(day, NAMES[n].slice(0, 3), own ? day === parse(text(at)) : n === parts(at).month && year === parts(at).year,
            own && day === now ? "today" : "");
          if (!own) made.classList.remove("on", "off");
          made.onclick = () => (own ? choose(day) : (page = day, months = false, draw()));
          grid.append(made);
        }
      } else {
        const weeks = unit === "week";
        grid.style.gridTemplateColumns = `repeat(${weeks ? 8 : 7}, 1fr)`;
        const heads = weeks ? ["Week", "M", "T", "W", "T", "F", "S", "S"] : ["S", "M", "T", "W", "T", "F", "S"];
        grid.append(...heads.map((name) => make("div", "cell", name)));
        const first = dayOf(year, month), shift = weeks ? (parts(first).weekday + 6) % 7 : parts(first).weekday;
        for (let n = 0; n < 42; n++) {
          const day = first - shift + n, { date, month: its } = parts(day), start = weeks ? day - n % 7 : day;
          if (weeks && n % 7 === 0) {
            const number = cell(start, String(Number(weekText(day).slice(-2))), start === at);
            number.onclick = () => choose(start);
            grid.append(number);
          }
          const made = cell(start, String(date), start === at, its === month ? "" : "pale");
          made.onclick = () => choose(start);
          grid.append(made);
        }
      }
      const clear = make("span", "", "Clear"), nowadays = make("span", "", today);
      clear.onclick = () => picked("", true);
      nowadays.onclick = () => choose(now);
      node.replaceChildren(make("div", "head", "", title, up, down), grid, make("div", "foot", "", clear, nowadays));
    };
    const shift = (by) => {
      page = at = fit(at + by);
      draw();
    };
    const jump = (count) => { // months
      const { year, month, date } = parts(at), last = parts(dayOf(year, month + count + 1, 0)).date;
      at = fit(dayOf(year, month + count, unit === "month" ? 1 : min(date, last)));
      if (unit === "week") at = parse(text(at));
      page = at;
      draw();
    };
    const key = (event) => {
      const { key: name } = event, own = unit === "month";
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: own ? -4 : -7, ArrowDown: own ? 4 : 7 }[name];
      if (name === "Escape") leave();
      else if (name === "Enter" || name === " ") choose(at);
      else if (name === "Tab") leave(true);
      else if (by && own) jump(by);
      else if (by) shift(unit === "week" ? 7 * Math.sign(by) : by);
      else if (name === "PageUp") jump(own ? -12 : -1);
      else if (name === "PageDown") jump(own ? 12 : 1);
      else if (name === "t") choose(now);
    };
    draw();
    return { node, key, placed() {}, keep: () => ({ at, months, page }) };
  };
  const days = (model, kept) => calendar(model, kept, model.kind, (value) => say(value));

  // -- the time of day: each press is a choice, as in the browser's own ----------------------------------------------
  const clock = (model, kept, picked) => {
    const [, hour, minute, second] = /(\d\d):(\d\d)(?::(\d\d(?:\.\d+)?))?$/.exec(model.value) ?? [];
    const given = hour !== undefined, seconds = Boolean(second) || (Number(model.step) > 0 && Number(model.step) % 60 !== 0);
    const [h, m, s] = given ? [Number(hour), Number(minute), Number(second ?? 0)] : model.now.split(":").map(Number);
    const step = Number(model.step) || 60, every = step >= 60 && step % 60 === 0 && 3600 % step === 0 ? step / 60 : 1;
    const each = (count, by = 1) => Array.from({ length: Math.ceil(count / by) }, (_, n) => n * by);
    const columns = [
      { all: [12, ...each(12).slice(1)], at: h % 12 || 12, name: two },
      { all: each(60, every), at: m, name: two },
      ...(seconds ? [{ all: each(60, step < 60 && 60 % step === 0 ? step : 1), at: floor(s), name: two }] : []),
      { all: ["AM", "PM"], at: h < 12 ? "AM" : "PM", name: String },
    ];
    let column = kept?.column ?? 0;
    const node = make("div", "times");
    const tell = () => {
      const [hours, minutes, ...rest] = columns.map((one) => one.at), half = rest.at(-1);
      picked(`${two(hours % 12 + (half === "PM" ? 12 : 0))}:${two(minutes)}${seconds ? `:${two(rest[0])}` : ""}`);
    };
    const draw = () => node.replaceChildren(...columns.map((one, n) => {
      const made = make("div", "column");
      for (const value of one.all) {
        const drawn = make("div", `cell${value === one.at ? " on" : ""}${n === column && value === one.at ? " at" : ""}`, one.name(value));
        drawn.onclick = () => { one.at = value; column = n; tell(); };
        made.append(drawn);
      }
      return made;
    }));
    draw();
    const placed = () => [...node.children].forEach((made, n) => {
      made.scrollTop = kept?.scrolls[n] ?? made.querySelector(".on")?.offsetTop - made.offsetTop;
      if (kept) made.querySelector(".on")?.scrollIntoView({ block: "nearest" });
    });
    const key = (event) => {
      const { key: name } = event, by = { ArrowUp: -1, ArrowDown: 1 }[name], aside = { ArrowLeft: -1, ArrowRight: 1 }[name];
      if (name === "Escape") leave();
      else if (name === "Enter") { if (!given) tell(); leave(); }
      else if (name === "Tab") leave(true);
      else if (aside) { column = min(max(column + aside, 0), columns.length - 1); draw(); }
      else if (by) {
        const one = columns[column], count = one.all.length;
        one.at = one.all[(max(one.all.indexOf(one.at), 0) + by + count) % count];
        tell();
      }
    };
    return { node, key, placed, keep: () => ({ column, scrolls: [...node.children].map((made) => made.scrollTop) }) };
  };
  const times = (model, kept) => clock(model, kept, (value) => say(value, false));
  const both = (model, kept) => {
    const [date = "", time = ""] = model.value.split("T");
    const first = calendar({ ...model, value: date }, kept?.first, "date", (day, clear) => {
      say(clear ? "" : `${day}T${time || model.now}`, false);
    });
    const second = clock({ ...model, value: time }, kept?.second, (chosen) => say(`${date || model.today}T${chosen}`, false));
    let right = kept?.right ?? false;
    const key = (event) => {
      if (event.key === "Tab" && right === event.shiftKey) right = !right;
      else if (event.key === "Enter" && !right) { first.key(event); leave(); }
      else (right ? second : first).key(event);
    };
    return {
      node: make("div", "side", "", first.node, second.node), key, placed: second.placed,
      keep: () => ({ first: first.keep(), second: second.keep(), right }),
    };
  };

  // -- colours: what is pointed at is the value at once, and the change is told when the picker closes ----------------
  const channelsOf = (text) => [1, 3, 5].map((n) => parseInt(text.slice(n, n + 2), 16));
  const hexOf = (channels) => `#${channels.map((one) => two(max(0, min(255, round(one))).toString(16))).join("")}`;
  const toRgb = ([hue, part, light]) => [5, 3, 1].map((n) => {
    const k = (n + hue * 6) % 6;
    return 255 * (light - light * part * max(0, min(k, 4 - k, 1)));
  });
  const toHsv = ([r, g, b]) => {
    const top = max(r, g, b), range = top - min(r, g, b);
    const turn = !range ? 0 : top === r ? ((g - b) / range + 6) % 6 : top === g ? (b - r) / range + 2 : (r - g) / range + 4;
    return [turn / 6, top ? range / top : 0, top / 255];
  };
  const colour = (model, kept) => {
    const begun = /^#[0-9a-f]{6}$/i.test(model.value) ? model.value : "#000000";
    let hsv = kept && hexOf(toRgb(kept.hsv)) === begun.toLowerCase() ? kept.hsv : toHsv(channelsOf(begun));
    const square = make("div", "square", "", make("i")), hue = make("div", "hue", "", make("i"));
    const chip = make("div", "chip"), fields = ["R", "G", "B"].map((name) => make("label", "", "", make("input"), name));
    const draw = () => {
      const rgb = toRgb(hsv);
      square.style.setProperty("--hue", hexOf(toRgb([hsv[0], 1, 1])));
      Object.assign(square.firstChild.style, { left: `${hsv[1] * 100}%`, top: `${(1 - hsv[2]) * 100}%` });
      hue.firstChild.style.left = `${hsv[0] * 100}%`;
      chip.style.background = hexOf(rgb);
      fields.forEach((one, n) => { if (document.activeElement !== one.firstChild) one.firstChild.value = round(rgb[n]); });
    };
    const set = (next) => { hsv = next; draw(); say(hexOf(toRgb(hsv)), false); };
    const held = (node, at) => {
      let down = false;
      const here = (event) => {
        const area = node.getBoundingClientRect();
        at(max(0, min(1, (event.clientX - area.x) / area.width)), max(0, min(1, (event.clientY - area.y) / area.height)));
      };
      node.onpointerdown = (event) => { down = true; node.setPointerCapture(event.pointerId); here(event); };
      node.onpointermove = (event) => { if (down) here(event); };
      node.onpointerup = () => { down = false; };
    };
    held(square, (x, y) => set([hsv[0], x, 1 - y]));
    held(hue, (x) => set([x * 0.9999, hsv[1], hsv[2]]));
    fields.forEach((one, n) => {
      one.firstChild.maxLength = 3;
      one.firstChild.onfocus = () => one.firstChild.select();
      one.firstChild.oninput = () => {
        const rgb = toRgb(hsv);
        rgb[n] = max(0, min(255, Number(one.firstChild.value) || 0));
        set(toHsv(rgb));
      };
    });
    const swatches = make("div", "swatches");
    for (const { value } of model.rows) {
      const made = make("i");
      made.style.background = value;
      made.onclick = () => set(toHsv(channelsOf(hexOf(channelsOf(value)))));
      swatches.append(made);
    }
    const inside = [square, hue, make("div", "channels", "", chip, ...fields), ...(model.rows.length ? [swatches] : [])];
    const key = (event) => {
      const { key: name } = event, x = { ArrowLeft: -1, ArrowRight: 1 }[name], y = { ArrowUp: 1, ArrowDown: -1 }[name];
      if (name === "Escape" || name === "Enter") leave();
      else if (document.activeElement.localName === "input") return false;
      else if (name === "Tab") { fields[0].firstChild.focus(); return true; }
      else if (x || y) set([hsv[0], max(0, min(1, hsv[1] + (x ?? 0) / 100)), max(0, min(1, hsv[2] + (y ?? 0) / 100))]);
      return true;
    };
    draw();
    return { node: make("div", "colour", "", ...inside), key, placed() {}, keep: () => ({ hsv }), updates: draw };
  };

  // -- what a field lacks: told, and gone with the next press -----------------------------------------------------------
  const bubble = (model) => ({
    node: make("div", "bubble", "", make("b", "", "!"), make("span", "", model.text)), key() {}, placed() {}, keep() {},
  });

  // -- all of them ---------------------------------------------------------------------------------------------------
  const KINDS = {
    list, bubble, suggestions: list, date: days, week: days, month: days, time: times, "datetime-local": both, color: colour,
  };
  const place = (node, anchor, rtl) => {
    node.style.minWidth = node.firstChild.className === "rows" ? `${anchor.w}px` : "";
    const below = innerHeight - anchor.y - anchor.h, above = anchor.y, rows = node.querySelector(":scope > .rows");
    const up = node.offsetHeight > below && above > below;
    if (rows) {
      const room = max(up ? above : below, min(innerHeight, 60)), line = rows.firstChild?.offsetHeight ?? 20;
      rows.style.maxHeight = `${min(20 * line, room - 2)}px`;
      node.style.maxWidth = `${innerWidth}px`;
    } else node.style.zoom = min(1, innerWidth / node.offsetWidth, innerHeight / node.offsetHeight);
    const zoom = Number(node.style.zoom || 1), w = node.getBoundingClientRect().width, h = node.getBoundingClientRect().height;
    const x = max(0, min(rtl ? anchor.x + anchor.w - w : anchor.x, innerWidth - w));
    const y = max(0, min(up ? anchor.y - h : anchor.y + anchor.h, innerHeight - h));
    Object.assign(node.style, { left: `${x / zoom}px`, top: `${y / zoom}px` });
  };
  /** Draw a control's picker, or the same one again after its page has moved on. anchor: the control's box. */
  const show = (model, anchor) => {
    if (shown && JSON.stringify([model, anchor]) === shown.drawn) return;
    const focus = document.activeElement?.localName === "input";
    if (shown && model.kind === "color" && focus && shown.model.kind === "color") { // a field is being typed in
      shown.drawn = JSON.stringify([model, anchor]);
      return;
    }
    const same = shown && shown.model.kind === model.kind && JSON.stringify(shown.model.rows) === JSON.stringify(model.rows);
    const part = KINDS[model.kind](model, same ? shown.part.keep() : null);
    const node = make("div", "", "", part.node);
    node.id = "picker";
    document.body.replaceChildren(node);
    place(node, anchor, model.rtl);
    part.placed();
    shown = { model, node, part, drawn: JSON.stringify([model, anchor]) };
  };
  const hide = () => {
    shown = null;
    said = { value: null, over: false, on: false };
    document.body.replaceChildren();
  };
  /** The part of the screen that it covers, or null. */
  const box = () => {
    if (!shown) return null;
    const area = shown.node.getBoundingClientRect();
    return { x: floor(area.x), y: floor(area.y), w: Math.ceil(area.right) - floor(area.x), h: Math.ceil(area.bottom) - floor(area.y) };
  };
  /** A turn of the wheel by half of what is seen. Done by hand: a window that is new may lose its first ones. */
  const scroll = (x, y, way) => {
    const list = document.elementFromPoint(x, y)?.closest(".rows, .column");
    if (list) list.scrollTop += way * list.clientHeight / 2;
  };
  const take = () => {
    const told = said;
    said = { value: null, over: false, on: false };
    return told;
  };
  addEventListener("keydown", (event) => {
    if (!shown || shown.part.key(event) === false) return;
    event.preventDefault();
  });
  addEventListener("contextmenu", (event) => event.preventDefault());
  window.pickers = { show, hide, box, scroll, take };
})();
