// Terminals of a session's machine: the agent's own, and a shell of the person's beside it. The guest's side, and how
// the two speak, is flywheel/envs/computer_server/terminal_relay.py.
import { socketOf } from "/watch/static/socket.js";
import { FitAddon, Terminal } from "/watch/static/xterm.js";

const KEYS = 0;
const SIZE = 1;
const SHOWN = 2;
const AGAIN_MS = 1000;
const TOLD = 2 ** 16; // bytes shown, after which the guest is told
const AGENTS = { rows: 24, cols: 80 };
const LOOKS = {
  fontFamily: "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace",
  fontSize: 14,
  scrollback: 5000,
  disableStdin: true,
  theme: { background: "#101216", foreground: "#e4e6ea", cursor: "#e4e6ea" },
  linkHandler: { activate() {} }, // a program's links lead nowhere
};

export function terminal(place, session, hear) {
  const view = make(place, AGENTS);
  view.fitFont();
  const link = connect(view, session, () => "terminal");
  return {
    take(on) {
      view.allow(on);
      if (on) hear({ note: "Keys go to the program that runs here. For commands of your own there is the shell." });
    },
    close() {
      link.close();
      view.close();
    },
  };
}

export function ownShell(place, session) {
  const hint = document.createElement("p");
  hint.className = "hint";
  hint.textContent = "Take over, and a shell of your own begins here, in the agent's machine and home.";
  let view = null;
  let link = null;
  const end = () => {
    link?.close();
    view?.close();
    view = link = null;
    place.replaceChildren(hint);
  };
  end();
  return {
    take(on) {
      end();
      if (!on) return;
      view = make(place, {});
      view.fit();
      link = connect(view, session, () => `shell?rows=${view.xterm.rows}&columns=${view.xterm.cols}`);
      view.resized((rows, columns) => link.send(SIZE, pair(rows, columns)));
      view.allow(true);
    },
    close: end,
  };
}

function make(place, size) {
  const box = document.createElement("div");
  box.className = "xterm-box";
  place.replaceChildren(box);
  const xterm = new Terminal({ ...LOOKS, ...size });
  const fitting = new FitAddon();
  xterm.loadAddon(fitting);
  xterm.open(box);
  const fit = () => fitting.fit();
  // Of a fixed number of columns: letters as large as the place lets them be.
  const fitFont = () => {
    const room = fitting.proposeDimensions()?.cols;
    if (room) xterm.options.fontSize = Math.max(6, Math.min(14, Math.floor((xterm.options.fontSize * room) / size.cols)));
  };
  const watch = new ResizeObserver(size.cols ? fitFont : fit);
  watch.observe(box);
  return {
    xterm,
    fit,
    fitFont,
    resized: (told) => xterm.onResize(({ rows, cols }) => told(rows, cols)),
    allow(on) {
      xterm.options.disableStdin = !on;
      if (on) xterm.focus();
    },
    close() {
      watch.disconnect();
      xterm.dispose();
    },
  };
}

function connect(view, session, what) {
  let socket = null;
  let open = true;
  let shown = 0;
  const send = (kind, body) => {
    if (socket.readyState !== WebSocket.OPEN) return;
    const message = new Uint8Array(5 + body.length);
    message[0] = kind;
    new DataView(message.buffer).setUint32(1, body.length);
    message.set(body, 5);
    socket.send(message);
  };
  const begin = () => {
    if (!open) return;
    shown = 0;
    socket = new WebSocket(socketOf(session, what()));
    socket.binaryType = "arraybuffer";
    socket.addEventListener("open", () => view.xterm.reset());
    socket.addEventListener("close", () => setTimeout(begin, AGAIN_MS));
    socket.addEventListener("message", ({ data }) => {
      view.xterm.write(new Uint8Array(data), () => {
        shown += data.byteLength;
        if (shown < TOLD) return;
        send(SHOWN, number(shown));
        shown = 0;
      });
    });
  };
  begin();
  const typed = new TextEncoder();
  view.xterm.onData((text) => view.xterm.options.disableStdin || send(KEYS, typed.encode(text)));
  view.xterm.onBinary((text) => {
    if (!view.xterm.options.disableStdin) send(KEYS, Uint8Array.from(text, (letter) => letter.charCodeAt(0)));
  });
  return {
    send,
    close() {
      open = false;
      socket.close();
    },
  };
}

function number(value) {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, value);
  return bytes;
}

function pair(first, second) {
  const bytes = new Uint8Array(4);
  const view = new DataView(bytes.buffer);
  view.setUint16(0, first);
  view.setUint16(2, second);
  return bytes;
}
