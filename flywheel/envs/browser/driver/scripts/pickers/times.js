// The time of day: each press is a choice, as in the browser's own.
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
