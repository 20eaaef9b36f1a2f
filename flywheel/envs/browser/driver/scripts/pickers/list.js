// A list: the options of a select, the suggestions of a field.
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
