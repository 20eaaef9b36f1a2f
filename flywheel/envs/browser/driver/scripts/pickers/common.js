// What the kinds of picker share: how they are built, and how they say what was chosen.
const { max, min, floor, round } = Math;
const two = (number) => String(number).padStart(2, "0");
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
