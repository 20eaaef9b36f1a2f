// Dialogs: the browser asks, and page time stands still (`browser_ui.py`).
const DIALOGS = 10; // of one look; what asks further is not heard

// A dialog that the task's own script raises, by reading or resetting the page, is nobody's to answer. A page that
// asks again and again is heard no more for a while, as in any browser.
const asking = (name, agreed, refused) => {
  const real = window[name];
  replace(window, name, { [name](...args) {
    const tell = (how) => note("note", `${name} "${args.length ? args[0] : ""}": ${how}`);
    if (core.quiet) return tell("answered OK, as the task's own script raised it"), agreed(args);
    if (++core.dialogs > DIALOGS) return tell("not shown, since there were too many"), refused;
    const begin = sinceLoad();
    try { return apply(real, window, args); } finally { core.away += sinceLoad() - begin; }
  } }[name]);
};
asking("alert", () => undefined, undefined);
asking("confirm", () => true, false);
asking("prompt", (args) => (args[1] === undefined ? "" : text(args[1])), null);
