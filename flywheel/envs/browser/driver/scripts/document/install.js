// All is put in place, and again after `document.open()`, which takes every listener away.

// A caret that blinks would do so in real time.
const still = new CSSStyleSheet();
still.replaceSync(":root { caret-animation: manual; }");
const settleIn = () => {
  const early = { capture: true };
  for (const kind of ["keydown", "keypress", "keyup"]) listen(window, kind, onKey, early);
  listen(window, "mousedown", onGesture, early);
  listen(window, "keydown", onGesture, early);
  listen(window, "invalid", onInvalid, early);
  listen(window, "submit", onSubmit);
  listen(window, "contextmenu", onMenu, early);
  listen(window, "click", onClick);
  listen(window, "popstate", onTravelled);
  listen(window, "pagehide", onHide);
  listen(window, "error", onFailed, early);
  listen(window, "unhandledrejection", onRejected);
  listen(window, "message", onMessage, early);
  listen(window, "load", onLoad);
  listen(window, "securitypolicyviolation", onReport, early);
  listen(window, "click", onChoose, early);
  listen(window, "dragstart", onDragStart, early);
  listen(window, "dragend", onDragEnd, early);
  listen(window, "copy", onCopy);
  listen(window, "cut", onCopy);
  listen(window, "paste", onPaste, early);
  listen(document, "load", onLoaded, early);
  document.adoptedStyleSheets = [still];
};
settleIn();
for (const name of ["open", "write", "writeln"]) {
  const method = Document.prototype[name];
  replace(Document.prototype, name, { [name](...args) {
    const answer = apply(method, this, args);
    if (same(this, document)) settleIn();
    return answer;
  } }[name]);
}

const offered = { core, observe, prepare, save, load, settleIn, features, keyTaken, find: look, note, track };
define(window, "__flywheel__", { value: Object.freeze(offered) });
