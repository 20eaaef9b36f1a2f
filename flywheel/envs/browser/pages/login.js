// How a manifest's login is carried out on the page (`session.py`).

/** Fill in a form and click. As script libraries do it: set the value past the page's own setter, then dispatch the
 *  events. texts: by the selector of the field. */
const fillIn = (texts, submit) => {
  const find = (selector) => document.querySelector(selector)
    ?? (() => { throw new Error(`login: there is no ${selector} on this page`); })();
  for (const [selector, text] of Object.entries(texts)) {
    const node = find(selector);
    node.focus();
    Object.getOwnPropertyDescriptor(Object.getPrototypeOf(node), "value").set.call(node, text);
    for (const kind of ["input", "change"]) node.dispatchEvent(new Event(kind, { bubbles: true }));
  }
  find(submit).click();
};

/** Wait until an expression is true; after so many ms of page time the login has failed. */
const waitUntil = async (expression, limitMs) => {
  const done = (0, eval)(`() => (\n${expression}\n)`);
  for (let passed = 0; !done(); passed += 50) {
    if (passed >= limitMs) throw new Error("login.done: it is still not true on the first page");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};
