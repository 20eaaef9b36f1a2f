// The sessions of a node: all of them as pictures, one of them live. What comes from a session is text, never markup.
import RFB from "/watch/static/vnc.js";

const EVERY_MS = 1000;
const at = (id) => document.getElementById(id);
let vnc = null;
let shown = "";
let sessions = [];

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

function drawAll() {
  const cards = new Map([...at("sessions").children].map((card) => [card.dataset.id, card]));
  for (const session of sessions) {
    const card = cards.get(session.id) ?? makeCard(session);
    cards.delete(session.id);
    card.querySelector("b").textContent = session.instruction || "No task yet";
    card.querySelector("small").textContent = about(session);
    const picture = card.querySelector("img");
    const text = card.querySelector("pre");
    picture.hidden = !session.picture;
    text.hidden = session.picture;
    text.textContent = session.text;
    if (session.picture && card.dataset.steps !== String(session.steps)) picture.src = pictureOf(session);
    card.dataset.steps = session.steps;
  }
  for (const gone of cards.values()) gone.remove();
}

function makeCard(session) {
  const card = document.createElement("a");
  card.className = "card";
  card.dataset.id = session.id;
  card.href = `#${encodeURIComponent(session.id)}`;
  const picture = document.createElement("img");
  picture.alt = "";
  card.append(picture, document.createElement("pre"), document.createElement("b"), document.createElement("small"));
  at("sessions").append(card);
  return card;
}

function drawOne(session) {
  at("title").textContent = session ? session.instruction || "No task yet" : "This session is over.";
  at("about").textContent = session ? about(session) : "";
  at("text").textContent = session?.text ?? "";
  at("hands").hidden = !session?.screen;
  at("port").hidden = !session?.services;
  if (!session) {
    leave();
  } else if (session.screen) {
    enter(session);
  } else if (session.picture) {
    const picture = at("view").querySelector("img") ?? document.createElement("img");
    picture.alt = "The last step's screen";
    picture.src = pictureOf(session);
    if (!picture.isConnected) at("view").replaceChildren(picture);
  }
}

function enter(session) {
  if (shown === session.id) return;
  leave();
  shown = session.id;
  at("view").className = "vnc";
  const address = new URL(`/watch/sessions/${encodeURIComponent(session.id)}/screen`, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  vnc = new RFB(at("view"), address.href, { wsProtocols: ["binary"] });
  vnc.scaleViewport = true;
  vnc.viewOnly = !at("take").checked;
  vnc.addEventListener("disconnect", () => {
    if (shown === session.id) shown = ""; // it is asked for again, if the session is still there
  });
}

function leave() {
  shown = "";
  at("take").checked = false;
  vnc?.disconnect();
  vnc = null;
  at("view").className = "";
  at("view").replaceChildren();
}

function about(session) {
  const score = session.score === null ? "" : `, score ${Number(session.score).toFixed(2)}`;
  const state = session.over ? ", over" : "";
  return `${session.kind}${session.world ? `, ${session.world}` : ""}, step ${Math.max(session.steps, 0)}${score}${state}`;
}

function pictureOf(session) {
  return `/watch/sessions/${encodeURIComponent(session.id)}/picture?${session.steps}`;
}

at("take").addEventListener("change", () => {
  if (vnc) vnc.viewOnly = !at("take").checked;
  if (vnc && at("take").checked) vnc.focus();
});
at("port").addEventListener("submit", (event) => {
  event.preventDefault();
  const session = sessions.find((one) => one.id === chosen());
  const port = new FormData(event.target).get("port");
  if (session) window.open(`${session.services}${port}/`, "_blank", "noopener,noreferrer");
});
window.addEventListener("hashchange", () => {
  leave();
  draw();
});
setInterval(look, EVERY_MS);
look();
