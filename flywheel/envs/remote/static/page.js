// A page, live: the newest picture on a canvas, and over it, while it is taken over, a field that takes mouse, fingers,
// keys and what input methods write.
import { socketOf } from "/watch/static/socket.js";

const AGAIN_MS = 1000;
const SLOP = 4; // pixels, of this page: a press that moves no further is a click
const TWICE_MS = 400; // between the clicks of a double click
const LONG_MS = 600; // of a long press
const PACE_MS = 80; // between two places that are only passed by

export function page(place, session, hear) {
  const parts = make(place);
  const link = connect(session, parts, hear);
  const hands = new Hands(parts, link.send);
  link.touch = (touch) => hands.phone(touch);
  return {
    take(on) {
      hands.take(on);
      link.take(on);
    },
    close() {
      hands.take(false);
      link.close();
    },
  };
}

export function make(place) {
  const box = document.createElement("div");
  box.className = "live";
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "The page as it is now");
  canvas.width = canvas.height = 0;
  const field = document.createElement("textarea");
  field.setAttribute("aria-label", "Mouse and keys go to the page; Ctrl+Alt+Enter gives it back");
  for (const name of ["autocomplete", "autocorrect", "autocapitalize"]) field.setAttribute(name, "off");
  field.spellcheck = false;
  field.hidden = true;
  box.append(canvas, field);
  const buttons = document.createElement("div");
  buttons.className = "buttons";
  buttons.hidden = true;
  place.replaceChildren(box, buttons);
  return { canvas, field, buttons };
}

export function fit(canvas, { width, height }) {
  if (canvas.width === width && canvas.height === height) return;
  Object.assign(canvas, { width, height });
  canvas.parentElement.style.setProperty("--width", width);
  canvas.parentElement.style.setProperty("--height", height);
}

function connect(session, parts, hear) {
  let socket = null;
  let open = true;
  let taken = false;
  let next = null;
  let busy = false;
  const link = {
    touch() {},
    send(said) {
      if (taken && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(said));
    },
    take(on) {
      taken = on;
      if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ take: on }));
    },
    close() {
      open = false;
      socket.close();
    },
  };
  // A picture that comes while the last one is unpacked waits; one that waits gives way to a newer one.
  const draw = async () => {
    while (next) {
      const picture = next;
      next = null;
      try {
        const image = await createImageBitmap(picture);
        fit(parts.canvas, image);
        parts.canvas.getContext("2d").drawImage(image, 0, 0);
        image.close();
      } catch {
        // the next one will do
      }
    }
    busy = false;
  };
  const begin = () => {
    if (!open) return;
    socket = new WebSocket(socketOf(session, "live"));
    socket.binaryType = "blob";
    socket.addEventListener("open", () => taken && link.take(true));
    socket.addEventListener("close", () => setTimeout(begin, AGAIN_MS));
    socket.addEventListener("message", ({ data }) => {
      if (data instanceof Blob) {
        next = data;
        if (!busy) {
          busy = true;
          draw();
        }
        return;
      }
      const said = JSON.parse(data);
      if ("touch" in said) link.touch(said.touch);
      if (said.taken === false) parts.field.hidden = true;
      hear(said);
    });
  };
  begin();
  return link;
}

export class Hands {
  constructor({ canvas, field, buttons }, send) {
    Object.assign(this, { canvas, field, buttons, send });
    this.keys = new Map(); // by code: the names that were pressed
    this.turned = null;
    this.press = null;
    this.last = { time: 0, x: 0, y: 0, count: 0 };
    this.passed = 0;
    for (const name of ["pointerdown", "pointermove", "pointerup", "pointercancel", "wheel", "keydown", "keyup"]) {
      field.addEventListener(name, (event) => this[name](event), { passive: false });
    }
    field.addEventListener("contextmenu", (event) => event.preventDefault());
    field.addEventListener("blur", () => this.releaseAll());
    field.addEventListener("input", (event) => event.isComposing || this.write());
    field.addEventListener("compositionend", () => this.write());
    this.phone(false);
  }

  /** It has fingers for a mouse, and a button that leads home. */
  phone(touch) {
    this.touch = touch;
    const names = touch ? ["back", "home"] : ["back"];
    this.buttons.replaceChildren(
      ...names.map((name) => {
        const button = document.createElement("button");
        button.textContent = name === "back" ? "Back" : "Home";
        button.addEventListener("click", () => this.send({ do: name }));
        return button;
      }),
    );
  }

  take(on) {
    if (!on) this.releaseAll();
    this.field.hidden = this.buttons.hidden = !on;
    if (on) this.field.focus({ preventScroll: true });
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height };
  }

  // -- mouse and fingers
  pointerdown(event) {
    if (!event.isPrimary || event.button === 1) return;
    event.preventDefault();
    this.field.focus({ preventScroll: true });
    this.field.setPointerCapture(event.pointerId);
    const at = this.place(event);
    this.press = { ...at, left: event.clientX, top: event.clientY, button: event.button, grabbed: false, timer: 0 };
    if ((this.touch || event.pointerType === "touch") && event.button === 0) {
      this.press.timer = setTimeout(() => {
        this.press = null;
        this.send({ do: "long", ...at });
      }, LONG_MS);
    }
  }

  pointermove(event) {
    if (!event.isPrimary) return;
    const press = this.press;
    if (!press) {
      if (event.pointerType === "mouse" && !event.buttons && event.timeStamp - this.passed > PACE_MS) {
        this.passed = event.timeStamp;
        this.send({ do: "move", ...this.place(event) });
      }
      return;
    }
    if (!press.grabbed && press.button === 0) {
      if (Math.hypot(event.clientX - press.left, event.clientY - press.top) <= SLOP) return;
      clearTimeout(press.timer);
      press.grabbed = true;
      this.send({ do: "grab", x: press.x, y: press.y });
    }
    if (press.grabbed) this.send({ do: "move", ...this.place(event) });
  }

  pointerup(event) {
    const press = this.press;
    if (!event.isPrimary || !press) return;
    this.press = null;
    clearTimeout(press.timer);
    if (press.grabbed) {
      this.send({ do: "drop", ...this.place(event) });
      return;
    }
    const last = this.last;
    const again = event.timeStamp - last.time < TWICE_MS && Math.hypot(event.clientX - last.x, event.clientY - last.y) <= SLOP;
    const count = press.button === 0 && again ? (last.count % 3) + 1 : 1;
    this.last = { time: event.timeStamp, x: event.clientX, y: event.clientY, count };
    this.send({ do: "click", x: press.x, y: press.y, button: press.button === 2 ? "right" : "left", count });
  }

  pointercancel(event) {
    this.pointerup(event);
  }

  wheel(event) {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 20 : 1;
    if (!this.turned) {
      this.turned = { right: 0, down: 0 };
      setTimeout(() => {
        this.send({ do: "wheel", ...this.turned });
        this.turned = null;
      }, PACE_MS);
    }
    this.turned.right += event.deltaX * unit;
    this.turned.down += event.deltaY * unit;
    Object.assign(this.turned, this.place(event));
  }

  // -- keys
  keydown(event) {
    const written = event.isComposing || event.keyCode === 229 || ["Dead", "Process", "Unidentified"].includes(event.key);
    if (written || event.getModifierState("AltGraph") || this.pastes(event)) return;
    const single = event.key.length === 1;
    const chord = event.ctrlKey || event.altKey || event.metaKey;
    if (single && (event.key > "~" || (!event.shiftKey && !chord && /[A-Z]/.test(event.key)))) return; // it is written
    event.preventDefault();
    this.keys.set(event.code, event.key);
    this.send({ do: "press", key: event.key });
  }

  keyup(event) {
    const key = this.keys.get(event.code);
    if (key === undefined) return;
    this.keys.delete(event.code);
    this.send({ do: "release", key });
  }

  /** What the person has copied elsewhere is pasted by these; Ctrl+V pastes what was copied in the page. */
  pastes(event) {
    const key = event.key.toLowerCase();
    if (key === "insert") return event.shiftKey;
    return key === "v" && (event.metaKey || (event.ctrlKey && event.shiftKey));
  }

  write() {
    if (this.field.value) this.send({ do: "text", text: this.field.value });
    this.field.value = "";
  }

  releaseAll() {
    for (const key of this.keys.values()) this.send({ do: "release", key });
    this.keys.clear();
  }
}
