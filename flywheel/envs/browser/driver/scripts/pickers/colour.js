// Colours: what is pointed at is the value at once, and the change is told when the picker closes.
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
