// The sessions of a node: all of them as cards, one of them live, part by part. What comes from a session is text,
// never markup. A part is opened by a function (place, session, hear) that gives { take(on), close(), told(session) },
// without `take` where there is nothing to be taken over; `hear` is told what the person should know, and whether the
// session is taken over.
import { desktop } from "/watch/static/desktop.js";
import { files } from "/watch/static/files.js";
import { page } from "/watch/static/page.js";
import { services } from "/watch/static/services.js";
import { pathOf } from "/watch/static/socket.js";
import { ownShell, terminal } from "/watch/static/terminal.js";

const EVERY_MS = 1000;
const PARTS = {
  Page: { open: page, there: (session) => session.screen === "page" },
  Desktop: { open: desktop, there: (session) => session.screen === "desktop" },
  Picture: { open: picture, there: (session) => session.picture && !session.screen },
  Text: { open: text, there: (session) => session.text && !session.services },
  Terminal: { open: terminal, there: (session) => session.services },
  Shell: { open: ownShell, there: (session) => session.services },
  Files: { open: files, there: (session) => session.services },
  Services: { open: services, there: (session) => session.services },
};
const at = (id) => document.getElementById(id);
let sessions = [];
let shown = { id: "", part: "", panel: null };

const chosen = () => decodeURIComponent(location.hash.slice(1));

async function look() {
  try {
    const answer = await fetch("/watch/sessions");
    at("login").hidden = answer.status !== 401;
    if (!answer.ok) {
      sessions = [];
      at("count").textContent = answer.status === 401 ? "Log in to see them." : `The node answers ${answer.status}.`;
    } else {
      sessions = await answer.json();
      at("count").textContent = sessions.length === 1 ? "One session" : `${sessions.length} sessions`;
    }
  } catch {
    at("count").textContent = "The node does not answer. It is asked again every second.";
  }
  draw();
}

function draw() {
  const one = sessions.find((session) => session.id === chosen());
  at("sessions").hidden = Boolean(chosen());
  at("one").hidden = !chosen();
  if (chosen()) drawOne(one);
  else {
    leave();
    drawAll();
  }
}

// -- all of them
function drawAll() {
  const cards = new Map([...at("sessions").children].map((card) => [card.dataset.id, card]));
  for (const session of sessions) {
    const card = cards.get(session.id) ?? makeCard(session);
    cards.delete(session.id);
    card.querySelector("b").textContent = session.instruction || "No task yet";
    card.querySelector("small").textContent = about(session);
    const image = card.querySelector("img");
    const text = card.querySelector("pre");
    image.hidden = !session.picture;
    text.hidden = session.picture;
    text.textContent = session.text;
    if (session.picture && card.dataset.steps !== String(session.steps)) image.src = pictureOf(session);
    card.dataset.steps = session.steps;
  }
  for (const gone of cards.values()) gone.remove();
}

function makeCard(session) {
  const card = document.createElement("a");
  card.className = "card";
  card.dataset.id = session.id;
  card.href = `#${encodeURIComponent(session.id)}`;
  const image = document.createElement("img");
  image.alt = "";
  card.append(image, document.createElement("pre"), document.createElement("b"), document.createElement("small"));
  at("sessions").append(card);
  return card;
}

// -- one of them
function drawOne(session) {
  at("title").textContent = session ? session.instruction || "No task yet" : "This session is over.";
  at("about").textContent = session ? about(session) : "";
  at("annotate").hidden = !session?.annotate;
  if (session?.annotate) at("annotate").href = session.annotate;
  at("film").hidden = !session?.film;
  if (session) at("film").href = pathOf(session, "recording");
  const parts = session ? Object.keys(PARTS).filter((part) => PARTS[part].there(session)) : [];
  drawTabs(parts);
  if (!parts.length) leave();
  else if (shown.id !== session.id || !parts.includes(shown.part)) enter(session, parts[0]);
  else shown.panel.told?.(session);
  at("hands").hidden = !shown.panel?.take;
}

function drawTabs(parts) {
  const place = at("parts");
  if (parts.join() !== [...place.children].map((tab) => tab.textContent).join()) {
    place.replaceChildren(...parts.map(makeTab));
  }
  for (const tab of place.children) {
    tab.setAttribute("aria-selected", String(tab.textContent === shown.part));
    tab.tabIndex = tab.textContent === shown.part ? 0 : -1;
  }
}

function makeTab(part) {
  const tab = document.createElement("button");
  tab.setAttribute("role", "tab");
  tab.setAttribute("aria-controls", "view");
  tab.textContent = part;
  tab.addEventListener("click", () => {
    const session = sessions.find((one) => one.id === chosen());
    if (session) enter(session, part);
  });
  return tab;
}

function enter(session, part) {
  const taken = shown.id === session.id && at("take").checked;
  leave();
  at("view").className = part.toLowerCase();
  const panel = PARTS[part].open(at("view"), session, hear);
  shown = { id: session.id, part, panel };
  at("take").checked = taken;
  panel.take?.(taken);
  at("hands").hidden = !panel.take;
  drawTabs([...at("parts").children].map((tab) => tab.textContent));
}

function leave() {
  shown.panel?.close();
  shown = { id: "", part: "", panel: null };
  at("take").checked = false;
  at("note").textContent = "";
  at("view").className = "";
  at("view").replaceChildren();
}

function hear({ note, taken }) {
  if (note !== undefined) at("note").textContent = note;
  if (taken === false && at("take").checked) at("take").checked = false;
}

function picture(place, session) {
  const image = document.createElement("img");
  image.alt = "The last step's screen";
  const told = (now) => (image.src = pictureOf(now));
  told(session);
  place.replaceChildren(image);
  return { told, close() {} };
}

function text(place, session) {
  const shownText = document.createElement("pre");
  shownText.tabIndex = 0;
  shownText.setAttribute("aria-label", "What the agent reads");
  const told = (now) => (shownText.textContent = now.text);
  told(session);
  place.replaceChildren(shownText);
  return { told, close() {} };
}

function about(session) {
  const score = session.score === null ? "" : `, score ${Number(session.score).toFixed(2)}`;
  const state = session.over ? ", over" : "";
  return `${session.kind}${session.world ? `, ${session.world}` : ""}, step ${Math.max(session.steps, 0)}${score}${state}`;
}

function pictureOf(session) {
  return pathOf(session, `picture?${session.steps}`);
}

at("take").addEventListener("change", () => {
  at("note").textContent = at("take").checked ? "Mouse and keys are yours; Ctrl+Alt+Enter gives them back." : "";
  shown.panel?.take?.(at("take").checked);
});
at("parts").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const tabs = [...at("parts").children];
  if (!step) return;
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  next.click();
  next.focus();
});
// The one chord that no session is given: it leads out of whatever holds the keyboard.
window.addEventListener(
  "keydown",
  (event) => {
    if (!(event.ctrlKey && event.altKey && event.key === "Enter" && at("take").checked)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    at("take").click();
    at("take").focus();
  },
  { capture: true },
);
window.addEventListener("hashchange", () => {
  leave();
  draw();
});
setInterval(look, EVERY_MS);
look();
