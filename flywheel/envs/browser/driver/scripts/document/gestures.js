// What a press of the user allows or begins: popups, drags, the choice of a file, menus, keys. The observer carries on
// what the page leaves to the browser.
const GESTURE = 5000; // page milliseconds in which a press of the user allows one popup

// -- popups
const frameNames = window.frames;
const here = (target) =>
  target === "_self" || target === "_parent" || target === "_top" || frameNames[target] !== undefined;
const mayOpen = () => { // as browsers have it: a popup needs a press of the user, and uses it up
  const may = core.now - core.gesture <= GESTURE;
  core.gesture = -Infinity;
  if (!may) note("note", "a popup that nobody asked for was blocked");
  return may;
};
const realOpen = window.open;
window.open = function open(...args) {
  const target = args[1] === undefined ? "" : text(args[1]);
  return (target !== "" && here(target)) || mayOpen() ? apply(realOpen, window, args) : null;
};

// -- a drag of HTML: the observer carries it on where the page lets it begin
const onDragStart = (event) => { if (event.isTrusted) core.drag = event; };
const effectOf = property(DataTransfer.prototype, "dropEffect");
const dragged = property(DragEvent.prototype, "dataTransfer");
const onDragEnd = (event) => {
  if (!event.isTrusted) return;
  core.drag = null;
  if (effectOf(dragged(event)) === "none") note("note", "nothing took what was dragged");
};
const dragging = () => Boolean(core.drag) && !prevented(core.drag);

// -- a file is asked for: the observer shows the session's files
const choosing = () => {
  const asked = core.chooser;
  core.chooser = null;
  return Boolean(asked) && !(asked instanceof Event && prevented(asked));
};
const isFile = (node) => node instanceof HTMLInputElement && node.type === "file" && !node.disabled;
const onChoose = (event) => { if (isFile(pathTo(event)[0])) core.chooser = event; };
for (const [object, name] of [[HTMLElement.prototype, "click"], [HTMLInputElement.prototype, "showPicker"]]) {
  const method = object[name];
  replace(object, name, { [name](...args) {
    if (isFile(this) && !(name === "click" && this.isConnected)) core.chooser = true;
    return apply(method, this, args);
  } }[name]);
}

// -- presses
const onGesture = (event) => { if (event.isTrusted) core.gesture = core.now, complaint = null; };
const onMenu = (event) => push(core.menus, event);
// A key by which the choice in a picker is made is one that no page hears of.
const onKey = (event) => {
  if (!event.isTrusted) return;
  if (core.unheard) stop(event);
  else if (event.type === "keydown") core.key = event;
};

/** Whether the page took the last key, so that the browser does nothing with it. */
const keyTaken = () => core.key !== null && prevented(core.key);

/** How many of these events the page left to the browser; they are forgotten. */
const unprevented = (events) => {
  let left = 0;
  for (let i = 0; i < events.length; i++) if (!prevented(events[i])) left += 1;
  events.length = 0;
  return left;
};
