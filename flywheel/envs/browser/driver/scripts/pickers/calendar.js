// Days, weeks, months.
const DAY = 86400000;
const NAMES = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
  "November", "December"];
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
