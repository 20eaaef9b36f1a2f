// The annotation page. What comes from an environment or from the model is text here, never markup. One WebSocket carries
// it all: pictures come as binary messages, everything else is JSON (`server.py`).
import { fit, Hands, make } from "/watch/static/page.js";
import { Speech } from "./speech.js";

const AGAIN_MS = 1000;
const SLOW_MS = 3000; // after which a decision that is not answered is spoken of
const LONGEST_S = 59; // of a spoken thought
const THINKS = "The model thinks…";
const NO_MORE = "There are no words to complete with: write on, or Tab again goes to the button.";
const SLOW = "There is no answer yet. It is waited for; nothing need be pressed again.";
const PRESSED = new Set(["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "PageUp", "PageDown", "Home", "End", "Backspace", "Delete"]);
const at = (id) => document.getElementById(id);
const element = (name, text = "", cls = "") => Object.assign(document.createElement(name), { textContent: text, className: cls });
const parts = make(at("place"));
const marks = element("div", "", "marks");
parts.canvas.after(marks);
parts.field.setAttribute("aria-label", "The screen: what you do here you do in place of the model");

let socket = null;
let session = null; // what was begun
let state = null; // as of its newest step
let candidates = [];
let own = null; // what the person is about to do: { say, considered }
let grabbed = null;
let busy = false; // a decision is under way
let slow = 0; // the timer that tells so
let rejoined = null; // the step that was shown when the connection was lost
let asked = 0; // proposals there were when more of them were asked for
let skipping = null; // the step at which Skip was pressed once
let wants = false; // a task was asked for, and there is neither one nor an error yet
let name = localStorage.getItem("annotator") || at("annotator").value;

// -- the server
function connect() {
  const address = new URL("work", location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(address);
  socket.binaryType = "blob";
  socket.addEventListener("open", () => {
    warn("");
    if (wants) send({ do: "begin", annotator: name });
    else if (name) send({ do: "hello", annotator: name });
    if (session) send({ do: "resume", session: session.name });
  });
  socket.addEventListener("close", async () => {
    warn("The server does not answer. What you decided is kept; it is asked again every second, and you can go on once it answers.");
    const answer = await fetch("work").catch(() => null);
    if (answer?.status === 401) location.assign(document.body.dataset.login); // it was begun anew
    else setTimeout(connect, AGAIN_MS);
  });
  socket.addEventListener("message", ({ data }) => {
    if (data instanceof Blob) picture(data);
    else for (const [what, said] of Object.entries(JSON.parse(data))) hear[what]?.(said);
  });
}

function send(said) {
  if (reached()) socket.send(JSON.stringify(said));
}

const hear = {
  desk(desk) {
    name = desk.annotator;
    localStorage.setItem("annotator", name);
    if (session) return;
    at("model").textContent = `model ${desk.model}, weights ${desk.weights.slice(0, 12)}`;
    at("count").textContent = `${count(desk.at_work, "session")} at work`;
    at("left").hidden = !desk.left.length;
    at("sessions").replaceChildren(...desk.left.map(leftSession));
  },
  session(begun) {
    wants = false;
    rejoined = begun.name === session?.name ? (state?.step ?? null) : null;
    session = begun;
    state = null;
    warn("");
    hands.phone(begun.touch);
    document.querySelector("[data-key=h]").hidden = !begun.touch;
    document.querySelector("[data-key=c]").hidden = !begun.functions;
    at("start").hidden = true;
    at("work").hidden = false;
    watchDesktop(begun);
    at("instruction").textContent = begun.instruction;
    at("about").textContent = `${begun.domain} / ${begun.world} / ${begun.template}, level ${begun.level}` +
      (begun.drawn_for ? `, drawn as ${begun.drawn_for}` : "");
    parts.field.hidden = false;
    if (!own) parts.field.focus({ preventScroll: true });
  },
  state(now) {
    busy = now.playing;
    answered();
    const stays = own && rejoined === now.step && !now.over; // what is being worded outlives a lost connection
    rejoined = skipping = null;
    if (!stays && (now.step !== state?.step || !now.playing)) cancelOwn();
    state = now;
    candidates = [];
    asked = 0;
    if (stays && own.say) weigh();
    at("thinking").textContent = now.playing ? "The model plays; Esc stops it." : now.over || !session.proposes ? "" : THINKS;
    at("count").textContent = `step ${now.step} of ${session.max_steps}`;
    at("model").textContent = (session.model ? `model ${session.model}, ` : "") +
      (session.weights ? `weights ${session.weights.slice(0, 12)}` : "") +
      (now.newest ? "" : ": a newer one was promoted meanwhile; this session keeps its own, your next one has the newer");
    at("note").textContent = now.text.includes(now.note.trim()) ? "" : now.note;
    at("text").textContent = now.text;
    at("text").hidden = !now.text;
    at("place").hidden = !now.screen;
    at("over").hidden = !now.over;
    at("acts").hidden = at("tools").hidden = now.over;
    at("proposals").hidden = now.over || !session.proposes;
    at("speak").parentElement.hidden = now.over;
    at("over").querySelector("[data-key=f]").classList.toggle("main", now.solved !== false);
    at("over").querySelector("[data-key=u]").classList.toggle("main", now.solved === false);
    for (const button of document.querySelectorAll("[data-key=m], [data-key=p]")) button.hidden = !session.proposes;
    at("plays").parentElement.hidden = !session.proposes;
    at("verdict").textContent = verdict(now.solved, now.score, now.verifier) +
      (now.solved === false ? " Undo the last step, or keep it as it is." : "");
    at("verdict").className = now.solved ? "good" : now.solved === false ? "bad" : "";
    at("history").replaceChildren(...now.history.map((one) => {
      const who = one.author === "human" ? "you" : one.by ? "accepted" : "model alone";
      const item = element("li", `${one.thought} `);
      item.append(element("code", one.action), element("span", ` ${who}`, "soft"));
      return item;
    }));
    for (const button of document.querySelectorAll("[data-key=u]")) button.disabled = now.step === 0;
    draw();
  },
  candidates(told) {
    if (told.step !== state?.step || state.over) return;
    candidates = told.list;
    at("thinking").textContent = told.why || (told.list.length > Math.max(1, asked) ? "" : "It has no other action.");
    asked = 0;
    draw();
  },
  considered(what) {
    if (!own) return;
    own.considered = what;
    at("own-action").textContent = what.action;
    at("own-action").hidden = false;
    complete();
    draw();
    if (own.waits) commit();
  },
  done(end) {
    leaveWork();
    at("done").hidden = false;
    at("done").textContent = `Kept, ${count(end.steps, "step")}. ${verdict(end.solved, end.score, true)}`;
    at("done").className = end.solved ? "good" : "";
    document.querySelector("#who button").focus();
  },
  closed(why) {
    leaveWork();
    warn(`This session is closed here: ${why}.`);
    send({ do: "hello", annotator: name });
  },
  note: (text) => warn(text),
  error(text) {
    busy = wants = false;
    answered();
    if (at("thinking").textContent === THINKS && candidates.length) at("thinking").textContent = "";
    warn(text);
    if (!own) return;
    at("own").hidden = false;
    if (!own.asked || own.considered) return;
    const typed = at("own-text").value; // what was refused stays, to be corrected
    own = { ...own, make: own.asked.make, say: null, waits: false };
    open(own.asked.title, own.asked.help, own.asked.label, own.asked.verb);
    at("own-text").value = typed;
  },
};

const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;
const verdict = (solved, score, verifier) =>
  solved == null ? (verifier ? "The verifier gave no score." : "There is no verifier: scorers judge it later.")
    : `${solved ? "Solved" : "Not solved"}, as the verifier says (score ${Number(score).toFixed(2)}).`;

function warn(text) {
  at("alert").textContent = text;
  at("alert").hidden = !text;
}

const reached = () => socket.readyState === WebSocket.OPEN;

/** A decision was answered: no longer say that it is waited for. */
function answered() {
  clearTimeout(slow);
  if (at("alert").textContent === SLOW) calm();
}

/** Take the last word away, once the person goes on; that the server does not answer stays. */
function calm() {
  if (reached()) warn("");
}

function leftSession(one) {
  const item = document.createElement("li");
  const told = `${one.instruction} (${count(one.steps, "step")}${one.old ? ", with an earlier model" : ""}${one.open ? "; open in another tab" : ""})`;
  const button = element("button", "Go on");
  button.addEventListener("click", () => send({ do: "resume", session: one.name }));
  item.append(Object.assign(element("span", told), { title: told }), button);
  return item;
}

function leaveWork() {
  watchDesktop(null);
  quiet();
  session = state = rejoined = null;
  candidates = [];
  busy = false;
  answered();
  cancelOwn();
  at("work").hidden = true;
  at("start").hidden = false;
  at("done").hidden = true;
}

// -- the picture, and what is drawn on it
let next = null;
let drawing = false;
async function picture(blob) {
  next = blob;
  if (drawing) return;
  drawing = true;
  while (next) {
    const newest = next;
    next = null;
    try {
      const image = await createImageBitmap(newest);
      fit(parts.canvas, image);
      parts.canvas.getContext("2d").drawImage(image, 0, 0);
      image.close();
    } catch {
      // the next one will do
    }
  }
  drawing = false;
}

function draw() {
  marks.replaceChildren();
  candidates.forEach((one, place) => one.undone || mark(one, String(place + 1), ""));
  if (own?.considered) mark(own.considered, "you", "own");
  at("candidates").replaceChildren(...candidates.map(proposal));
}

function mark(one, label, cls) {
  if (one.x == null) return;
  if (one.x2 != null) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 1 1");
    svg.setAttribute("preserveAspectRatio", "none");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    line.setAttribute("class", cls);
    for (const [name, value] of Object.entries({ x1: one.x, y1: one.y, x2: one.x2, y2: one.y2 })) line.setAttribute(name, value);
    svg.append(line);
    marks.append(svg, spot(one.x2, one.y2, `mark end ${cls}`));
  }
  const ring = spot(one.x, one.y, `mark ${cls}`);
  ring.dataset.label = label;
  const badge = element("b", label);
  // Rings of near places have their numbers on different sides.
  const near = [...marks.querySelectorAll(".mark b")].filter((other) => {
    const box = other.parentElement;
    return Math.hypot(parseFloat(box.style.left) - 100 * one.x, parseFloat(box.style.top) - 100 * one.y) < 6;
  }).length;
  badge.style.left = `${16 - 24 * (near % 2)}px`;
  badge.style.top = `${-12 + 24 * Math.floor(near / 2)}px`;
  ring.append(badge);
  marks.append(ring);
}

function spot(x, y, cls) {
  const one = element("span", "", cls);
  one.style.left = `${100 * x}%`;
  one.style.top = `${100 * y}%`;
  return one;
}

/** A candidate as it is shown. place: in the order shown, from 0; its key is that of the next number. */
function proposal(one, place) {
  const key = String(place + 1);
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.classList.toggle("undone", one.undone);
  button.append(
    element("span", key, "number"),
    element("span", one.thought || "(no thought)", "said"),
    element("span", `${one.votes} of ${one.samples}`, "votes"),
    element("code", one.action),
  );
  const votes = `${one.votes} of the model's ${count(one.samples, "answer")} ${one.votes === 1 ? "does" : "do"} this`;
  button.title = `${one.undone ? "You took this one back" : `Accept with ${key}`}; ${votes}`;
  button.addEventListener("click", () => accept(place));
  for (const [event, on] of [["mouseenter", true], ["mouseleave", false], ["focus", true], ["blur", false]]) {
    button.addEventListener(event, () => {
      for (const ring of marks.querySelectorAll(".mark")) ring.classList.toggle("strong", on && ring.dataset.label === key);
    });
  }
  item.append(button);
  return item;
}

/** Show a session's desktop as it is drawn; what is done on it goes by the field above, and not by VNC. */
let desktop = null; // { close() }
async function watchDesktop(begun) {
  desktop?.close();
  desktop = null;
  if (!begun?.desktop) return;
  const view = (desktop = { vnc: null, open: true, place: element("div", "", "desktop") });
  view.close = () => {
    view.open = false;
    view.place.remove();
    view.vnc?.disconnect();
  };
  parts.canvas.after(view.place);
  const { default: RFB } = await import("/watch/static/vnc.js");
  const address = new URL(`screen/${encodeURIComponent(begun.name)}`, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const begin = () => {
    if (!view.open) return;
    view.place.replaceChildren();
    view.vnc = new RFB(view.place, address.href, { wsProtocols: ["binary"] });
    view.vnc.scaleViewport = view.vnc.viewOnly = true;
    view.vnc.addEventListener("connect", () => (view.place.dataset.live = "true"));
    view.vnc.addEventListener("disconnect", () => {
      delete view.place.dataset.live; // the picture of the last step is below it
      setTimeout(begin, AGAIN_MS);
    });
  };
  begin();
}

// -- a thought that is spoken
const speech = new Speech();
let spoken = ""; // heard before there was anything to say it of
let listening = 0; // the timer that ends it

async function speak() {
  if (!session || at("speak").disabled) return;
  if (speech.open) return hearOut();
  at("speak").disabled = true;
  try {
    await speech.start();
    at("heard").textContent = "Listening…";
    at("speak").setAttribute("aria-pressed", "true");
    listening = setInterval(() => {
      if (!speech.open) return;
      at("heard").textContent = `Listening… ${Math.floor(speech.seconds)} s. Alt+S ends it.`;
      if (speech.seconds >= LONGEST_S) hearOut();
    }, 250);
  } catch (error) {
    at("heard").textContent = error.message;
  }
  at("speak").disabled = false;
}

async function hearOut() {
  clearInterval(listening);
  if (!speech.open) return;
  at("speak").setAttribute("aria-pressed", "false");
  at("speak").disabled = true;
  const of = session.name;
  try {
    const { samples, rate } = await speech.stop();
    at("heard").textContent = "It is being understood…";
    const answer = await fetch(`speech/${encodeURIComponent(of)}?rate=${rate}`, { method: "POST", body: samples });
    const said = answer.headers.get("Content-Type")?.includes("json") ? await answer.json() : { error: await answer.text() };
    if (session?.name === of) understood(said);
  } catch {
    at("heard").textContent = "The server does not answer: type the thought, or speak again.";
  }
  at("speak").disabled = false;
}

function understood(said) {
  if (said.error || !said.text) {
    at("heard").textContent = said.error ?? "No words were understood: speak again, or type the thought.";
    return;
  }
  at("heard").textContent = `Heard: ${said.heard}`;
  spoken = [at("thought").value || spoken, said.text].filter(Boolean).join(" ");
  at("thought").value = spoken.slice(0, at("thought").maxLength);
  complete();
  if (own?.say) at("thought").focus();
}

/** Close the microphone, and forget what was said. */
function quiet() {
  clearInterval(listening);
  if (speech.open) speech.stop();
  at("speak").setAttribute("aria-pressed", "false");
  at("heard").textContent = spoken = "";
}

// -- what the person does
function decide(said) {
  if (!state || busy || !reached()) return; // the alert says that the server is not reached
  busy = true;
  warn("");
  slow = setTimeout(() => busy && reached() && warn(SLOW), SLOW_MS);
  send({ ...said, step: state.step });
}

function accept(place) {
  if (candidates[place]) decide({ do: "accept", number: candidates[place].number });
}

function consider(said) {
  if (!state || state.over || busy) return;
  calm();
  const asked = own?.make ? null : own?.asked; // which field it was written in
  own = { ...own, asked, make: null, say: { ...said, touch: session.touch }, considered: null, waits: false };
  open("You do", "");
  at("own-thought").hidden = false;
  at("thought").value ||= spoken;
  complete();
  at("thought").focus({ preventScroll: matchMedia("(min-width: 901px)").matches });
  weigh();
}

/** Ask the server what it is that the person is about to do. */
function weigh() {
  own = { ...own, considered: null, waits: false };
  send({ do: "consider", step: state.step, ...own.say });
}

/** A gesture on the screen, as `Hands` tells it. */
function gesture(said) {
  if (said.do === "grab") grabbed = said;
  else if (said.do === "drop" && grabbed) consider({ gestures: [grabbed, said] });
  else if (["click", "long", "wheel", "back", "home"].includes(said.do)) consider({ gestures: [said] });
  if (said.do === "drop") grabbed = null;
}

function open(title, help, text = null, verb = "Do it") {
  at("own").hidden = false;
  at("own-title").textContent = title;
  at("own-field").hidden = text === null;
  at("own-field").firstChild.textContent = `${text ?? ""} `;
  at("own-action").hidden = true;
  at("own-thought").hidden = text !== null;
  at("own-do").firstChild.textContent = `${verb} `;
  at("own-help").textContent = help;
  if (text === null) return;
  at("own-text").value = "";
  at("own-text").focus();
}

/** Ask for a text: `make` gives what is done with it. */
function ask(title, label, help, make, verb = "Go on") {
  if (!state || state.over || busy) return;
  calm();
  own = { make, asked: { title, label, help, make, verb } };
  open(title, help, label, verb);
}

function cancelOwn() {
  if (own && !at("work").hidden) parts.field.focus({ preventScroll: true });
  own = null;
  at("own").hidden = true;
  at("thought").value = "";
  at("own-text").value = "";
  if (!speech.open) at("heard").textContent = spoken = "";
  draw();
}

const completion = () => {
  const typed = at("thought").value;
  const thoughts = own?.considered?.thoughts ?? own?.thoughts ?? [];
  return thoughts.find((one) => one.toLowerCase().startsWith(typed.toLowerCase())) ?? "";
};

function complete() {
  const typed = at("thought").value;
  const grey = completion().slice(typed.length);
  at("ghost").textContent = typed + grey;
  at("own-help").textContent = typed ? `Enter does it with your words${grey ? "; Tab completes them" : ""}.`
    : grey ? "Enter does it with the grey words; Tab takes them, to go on writing." : "Say why; Enter does it.";
}

at("thought").addEventListener("input", complete);
at("thought").addEventListener("keydown", (event) => {
  if (event.key !== "Tab" || event.shiftKey) return;
  const typed = at("thought").value;
  if (completion().length > typed.length) {
    at("thought").value = completion();
    complete();
  } else if (typed && at("own-help").textContent !== NO_MORE) {
    at("own-help").textContent = NO_MORE; // who waits for words goes on writing: the first letters must not be shortcuts
  } else return;
  event.preventDefault();
});
at("own-text").addEventListener("keydown", (event) => {
  if (own?.keys) {
    if (event.key === "Escape" || (event.key === "Tab" && event.shiftKey)) return;
    event.preventDefault();
    if (["Control", "Alt", "Shift", "Meta"].includes(event.key)) return;
    const held = [["Control", event.ctrlKey], ["Alt", event.altKey], ["Meta", event.metaKey], ["Shift", event.shiftKey && event.key.length > 1]];
    const keys = [...held.filter(([, on]) => on).map(([key]) => key), event.key];
    consider({ gestures: keys.map((key) => ({ do: "press", key })) });
  } else if (event.key === "Enter" && event.shiftKey && own?.submit) {
    event.preventDefault();
    consider({ gestures: [{ do: "text", text: `${at("own-text").value}\n` }] });
  }
});
/** Do what is shown; Enter may come before the server has said what it is. */
function commit() {
  own.waits = !own.considered;
  if (own.considered) decide({ do: "override", ...own.say, thought: at("thought").value || completion() });
}

at("own").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!own) return;
  if (own.make) {
    const { make: made } = own;
    own.make = null;
    made(at("own-text").value);
  } else if (own.say) commit();
});
at("own-cancel").addEventListener("click", cancelOwn);

const acts = {
  t() {
    ask("You type", "Text", "Enter goes on to why; Shift+Enter also submits the text.", (text) =>
      consider({ gestures: [{ do: "text", text }] }));
    if (own) own.submit = true;
  },
  k() {
    ask("You press", "Keys", "Press the keys, such as Ctrl+A.", () => {});
    if (own) own.keys = true;
  },
  a: () => ask("You do", "Action", "As the model writes it, such as wait() or click(point='<point>50 50</point>').", (text) =>
    consider({ action: text })),
  c: () => session?.functions && ask("You run", "Command", "Enter goes on to why; then it runs in the shell.", (command) =>
    consider({ command })),
  w: () => consider({ action: "wait()" }),
  b: () => consider({ gestures: [{ do: "back" }] }),
  h: () => session.touch && consider({ gestures: [{ do: "home" }] }),
  m: () => {
    if (!state || state.over || busy) return;
    if (!reached()) return;
    at("thinking").textContent = THINKS;
    asked = candidates.length;
    send({ do: "more", step: state.step });
  },
  u: () => state?.step && decide({ do: "undo" }),
  p: () => state && !state.over && decide({ do: "play", count: Math.max(1, Number(at("plays").value) || 1) }),
  f() {
    if (!state) return;
    if (state.over) decide({ do: "finish" });
    else ask("It is done", "Answer, where one is asked for", "Enter ends the task; the verifier then says whether it is solved.", (answer) => decide({ do: "finish", answer }), "End the task");
  },
};

for (const button of document.querySelectorAll("[data-key]")) button.addEventListener("click", () => acts[button.dataset.key]());
at("speak").addEventListener("click", speak);
at("skip").addEventListener("click", () => {
  if (state?.step && skipping !== state.step) {
    skipping = state.step;
    warn(`Skip drops the ${count(state.step, "step")} that you decided: press it again to do so. With Leave you can go on later.`);
  } else giveBack("skip", "Skipped: you are not offered it again.");
});
at("leave").addEventListener("click", () => giveBack("leave", state?.step ? "Left: you can go on with it below." : "Left."));

function giveBack(how, told) {
  if (!reached()) return; // the alert says so
  warn("");
  send({ do: how });
  leaveWork();
  at("done").hidden = false;
  at("done").textContent = told;
  at("done").className = "";
  document.querySelector("#who button").focus();
}

at("who").addEventListener("submit", (event) => {
  event.preventDefault();
  name = at("annotator").value;
  warn("");
  wants = true; // where the server is not reached yet, it is asked once it is
  send({ do: "begin", annotator: name });
});
// Keys are shortcuts unless one writes; none of them reaches the screen by itself.
addEventListener("keydown", (event) => {
  if (event.target === parts.field && event.key !== "Tab") {
    event.preventDefault();
    event.stopImmediatePropagation();
  }
  const writes = event.target !== parts.field && event.target.closest?.("input, textarea");
  const worded = own && at(own.make ? "own-text" : "thought");
  if (event.key === "Escape") {
    if (busy) send({ do: "stop" });
    else {
      calm();
      cancelOwn();
    }
  } else if (event.altKey && !event.ctrlKey && event.code === "KeyS" && !at("work").hidden) {
    event.preventDefault();
    speak();
  } else if (!writes && !event.ctrlKey && !event.altKey && !event.metaKey && !at("work").hidden) {
    if (worded && event.key.length === 1 && (event.key !== " " || event.target === parts.field)) {
      event.preventDefault(); // while something is worded, a letter belongs to it wherever the focus is, and is no shortcut
      worded.focus();
      if (!own.keys) worded.setRangeText(event.key, worded.selectionStart, worded.selectionEnd, "end");
      worded.dispatchEvent(new Event("input"));
    } else if (event.target === parts.field && !own && PRESSED.has(event.key)) consider({ gestures: [{ do: "press", key: event.key }] });
    else if (/^[1-9]$/.test(event.key)) accept(Number(event.key) - 1);
    else if (Object.hasOwn(acts, event.key)) {
      event.preventDefault(); // the key opens a field, and is not written into it
      acts[event.key]();
    }
  }
}, { capture: true });

const hands = new Hands(parts, gesture);
parts.buttons.remove();
if (name && at("annotator").value === at("annotator").defaultValue) at("annotator").value = name;
document.querySelector("#who button").disabled = false; // before, the browser would send the form by itself
(at("annotator").value ? document.querySelector("#who button") : at("annotator")).focus();
connect();
