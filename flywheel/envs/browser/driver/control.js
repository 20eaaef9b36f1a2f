// Called on one native form control, in a world of our own that the page's scripts cannot reach into: what a picker has
// to show of it, and what to do with the choice.
function (what, ...given) {
  const view = this.ownerDocument.defaultView, css = view.getComputedStyle(this);
  const select = this.localName === "select";
  // A page that draws the picker itself (`appearance: base-select` on both parts) needs none of ours.
  const native = !select || css.appearance !== "base-select"
    || view.getComputedStyle(this, "::picker(select)").appearance !== "base-select";
  const open = () => native && this.matches(":open");
  const usable = () => this.isConnected && !this.matches(":disabled") && !this.readOnly && this.checkVisibility();

  const shade = (style) => ({ color: style.color, background: style.backgroundColor });
  const rows = () => {
    const found = [];
    const walk = (parent, inGroup, disabled) => {
      for (const node of parent.children) {
        const style = view.getComputedStyle(node);
        if (style.display === "none") continue;
        const off = disabled || node.disabled;
        if (node.localName === "hr") found.push({ line: true });
        else if (node.localName === "option")
          found.push({
            text: node.label || node.text, at: node.index, inGroup, disabled: off, chosen: node.selected,
            bold: style.fontWeight, ...shade(style),
          });
        else if (node.localName === "optgroup") {
          found.push({ text: node.label, group: true, disabled: off, ...shade(style) });
          walk(node, true, off);
        } else walk(node, inGroup, off);
      }
    };
    walk(this, false, false);
    return found;
  };
  const suggestions = () => [...(this.list?.options ?? [])]
    .filter((option) => option.value && !option.disabled)
    .map((option) => ({ value: option.value, text: option.label || option.value }));

  const describe = () => {
    if (!usable() || !native) return null;
    const scale = this.currentCSSZoom ?? 1, rtl = css.direction === "rtl";
    const look = {
      rtl, size: parseFloat(css.fontSize) * scale, family: css.fontFamily, weight: css.fontWeight, ...shade(css),
    };
    if (select) return { kind: "list", value: this.selectedIndex, rows: rows(), ...look };
    const { type, value, min, max, step } = this;
    const text = !["color", "date", "datetime-local", "month", "time", "week"].includes(type);
    const like = value.toLowerCase();
    const listed = suggestions().filter((one) => !text || (one.value !== value && `${one.value}\n${one.text}`.toLowerCase().includes(like)));
    return { kind: text ? "suggestions" : type, value, min, max, step, rows: listed, ...look };
  };

  const complain = () => usable() && this.validationMessage
    ? { kind: "bubble", text: this.validationMessage, rows: [], rtl: css.direction === "rtl" } : null;

  const value = select ? null : Object.getOwnPropertyDescriptor(view.HTMLInputElement.prototype, "value");
  /** A value is chosen. Where the page hears of it is the same as for a picker of the browser's. */
  const choose = (chosen) => {
    if (!usable() || this.value === chosen) return false;
    value.set.call(this, chosen);
    return true;
  };
  const tell = (kind) => {
    const one = kind === "input" && this.type !== "color"
      ? new view.InputEvent("input", { bubbles: true, composed: true, inputType: "insertReplacementText" })
      : new view.Event(kind, { bubbles: true, composed: kind === "input" });
    this.dispatchEvent(one);
  };
  /** The option before the wanted one, without a word: one key down from here is a choice that the browser makes. */
  const ready = (index) => {
    if (!usable() || index === this.selectedIndex || !this.options[index]) return false;
    this.selectedIndex = index - 1;
    let deep = this.getRootNode().activeElement === this;
    return deep && this.selectedIndex === index - 1;
  };
  const pick = (index) => {
    if (this.selectedIndex === index) return;
    this.selectedIndex = index;
    tell("input");
    tell("change");
  };
  return { open, describe, complain, choose, tell, ready, pick }[what](...given);
}
