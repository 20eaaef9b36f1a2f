// What a manifest asks of its page. Faults are collected by field, so that what is wrong with a manifest is told by
// its name and not as a script error. Expressions are compiled once a document, by the first look at it, which waits for
// nothing: only then does the page's own policy on eval not bind an observer.

const tell = (error) => (error instanceof Error ? `${error.name}: ${error.message}` : `it threw ${String(error)}`);
const compile = (text) => (0, eval)(`(seed, variant) => (\n${text}\n)`);

/** The expressions as functions, and the faults so far, kept in the document. */
const compiled = ({ fields, ready, reset }) => {
  if (window.__manifest__) return window.__manifest__;
  const made = { get: {}, faults: {} };
  const attempt = (field, make) => {
    try { return make(); } catch (error) { made.faults[field] = tell(error); }
  };
  for (const [field, { text }] of Object.entries(fields)) made.get[field] = attempt(field, () => compile(text));
  made.ready = ready && attempt("ready", () => compile(ready));
  made.reset = reset && attempt("reset", () => {
    try { return compile(reset); } catch { return (0, eval)(`async (seed, variant) => {\n${reset}\n}`); }
  });
  Object.defineProperty(window, "__manifest__", { value: made });
  return made;
};

const pass = (ms) => new Promise((resolve) => setTimeout(resolve, ms)); // page time

/** What `ask` gives. Dialogs that it raises are answered OK and noted: they are not the policy's to answer. */
const quietly = (ask) => {
  const { core } = __flywheel__, over = () => { core.quiet -= 1; };
  core.quiet += 1;
  try {
    const value = ask();
    if (!(value instanceof Promise)) return over(), value;
    value.then(over, over);
    return value;
  } catch (error) {
    over();
    throw error;
  }
};

/** Once, after the load: wait until the page is ready, reset it, let its first frames pass. Never throws. */
const prepare = async (seed, variant, asked, { readyMs, settleMs }) => {
  const made = compiled(asked), { faults } = made;
  made.prepared = true;
  if (Object.keys(faults).length) return;
  try {
    for (let passed = 0; made.ready && !quietly(() => made.ready(seed, variant)); passed += 50) {
      if (passed >= readyMs) throw new Error(`it is still not true after ${readyMs / 1000} s of page time`);
      await pass(50);
    }
  } catch (error) { faults.ready = tell(error); return; }
  try {
    if (made.reset) await quietly(() => made.reset(seed, variant));
  } catch (error) { faults.reset = tell(error); return; }
  if (settleMs) await pass(settleMs);
};

const name = (value) => {
  if (value === undefined) return "undefined: the page has no such value";
  if (typeof value === "string") return `the text ${JSON.stringify(value.slice(0, 60))}`;
  if (value instanceof Node) return "an element of the page: read its textContent, value or dataset";
  if (value instanceof Promise) return "a promise, which is not waited for here";
  if (typeof value === "function") return "a function: call it";
  return typeof value === "object" && value !== null ? "an object" : String(value);
};
const kinds = {
  "a number": (value) => typeof value === "number" && Number.isFinite(value),
  "true or false": (value) => typeof value === "boolean",
  "a text": (value) => typeof value === "string" && value.trim() !== "",
};
const MOST = 20000;

/** At each look: the value of every field, or why there is none. Never throws, and gives JSON values alone. */
const read = (seed, variant, asked) => {
  const made = compiled(asked), values = {}, faults = { ...made.faults };
  for (const [field, { kind }] of Object.entries(asked.fields)) {
    if (faults[field]) continue;
    try {
      const value = quietly(() => made.get[field](seed, variant));
      const text = kind ? "" : JSON.stringify(value);
      if (kind ? !kinds[kind](value) : text === undefined || value instanceof Node)
        faults[field] = `it gives ${name(value)}; ${kind || "a JSON value"} is needed`;
      else if (text.length > MOST) faults[field] = `it gives ${text.length} characters of JSON, ${MOST} are the most`;
      else values[field] = kind ? value : JSON.parse(text);
    } catch (error) { faults[field] = tell(error); }
  }
  const prepared = Boolean(made.prepared); // false: another document than the one that was reset
  if (!Object.keys(faults).length) return { values, faults, prepared };
  const failed = performance.getEntriesByType("resource").filter((entry) => entry.responseStatus >= 400
    || !(entry.responseStatus || entry.transferSize || entry.decodedBodySize || entry.name.startsWith("data:")));
  return {
    values, faults, prepared, modules: document.querySelectorAll("script[type=module]").length,
    failed: failed.slice(0, 3).map((entry) => entry.name),
  };
};
