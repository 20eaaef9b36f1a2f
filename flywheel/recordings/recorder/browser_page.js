// Tells the recorder what is done in a document. Runs in a world of its own, which the page's scripts do not see.
(() => {
  if (globalThis.flywheelRecorder) return;
  const MODIFIERS = ["Control", "Alt", "Meta", "Shift"], UNTYPED = ["Dead", "Process", "Unidentified", "AltGraph"];
  const HOSTS = new Set("article aside blockquote body div footer h1 h2 h3 h4 h5 h6 header main nav p section span".split(" "));
  const FIELDS = new Set(["input", "textarea", "select"]), NAMED = new Set([...FIELDS, "a", "button"]);
  const PLAIN = '[autocomplete*="cc-" i],[autocomplete*="one-time-code" i]';  // secret, and readable on the screen
  const held = new Set(), secret = new WeakSet(), shown = new Set();
  const closed = new WeakMap(), asked = new WeakMap(), waiting = new Map(), later = [];  // hosts of shadow roots that are closed
  let count = 0, told = false, inside = false, looked = -1e9, turned = {button: 0, at: 0}, composing = false, listed = false;

  const say = (kind, event, more) => {
    const now = performance.now(), url = location.href;
    flywheel_record(JSON.stringify({kind, at: Date.now() - now + (event ? event.timeStamp : now), url, ...more}));
  };
  // Tells whether it is known what lies in an element's shadow: a closed root is the recorder's to open.
  const known = (element) => {
    if (!element?.localName || element.shadowRoot || closed.has(element)) return true;
    if (!element.localName.includes("-") && !HOSTS.has(element.localName)) return true;
    if (asked.get(element) === "none") return true;
    if (!asked.has(element)) {
      asked.set(element, "asked");
      waiting.set(++count, element);
      say("host", null, {id: count});
    }
    return false;
  };
  const deepest = (element, find) => {
    for (let root; (root = element && (element.shadowRoot || closed.get(element)));) {
      hear(root);
      const inner = find(root);
      if (!inner || inner === element || inner.getRootNode() !== root) break;
      element = inner;
    }
    return element;
  };
  const focusIn = (element) => deepest(element, (root) => root.activeElement);
  const pointed = (event) => deepest(event.composedPath()[0], (root) => root.elementFromPoint(event.clientX, event.clientY));
  const isSecret = (element) => {
    if (!element?.matches || secret.has(element)) return secret.has(element);
    const words = (element.getAttribute("autocomplete") || "").toLowerCase().split(/\s+/);
    const marked = words.some((word) => word === "one-time-code" || word.startsWith("cc-") || word.endsWith("-password"));
    const masked = !["none", ""].includes(getComputedStyle(element).webkitTextSecurity ?? "");
    if (element.type !== "password" && !marked && !masked) return false;
    secret.add(element);  // also once the page shows it as plain text
    shown.add(element);
    tell();
    return true;
  };
  const tell = () => {
    if (told || (!shown.size && performance.now() - looked < 200)) return;
    looked = performance.now();
    if (shown.size || document.querySelector(PLAIN)) { told = true; say("secret"); }
  };
  const label = (element) => {
    for (let one = element, climbed = 0; one?.localName && climbed < 8; climbed++) {
      if (one === document.documentElement || one === document.body) break;
      const role = one.computedRole || (NAMED.has(one.localName) ? one.localName : "");
      const name = (one.computedName || one.ariaLabel || one.alt || "").trim().slice(0, 200);
      if (name && role !== "generic") return `${name} (${role})`;
      if (one.localName === "canvas") return "canvas, without a label";
      if (role && !["generic", "none", "presentation", "paragraph"].includes(role)) return words(one) ? `${words(one)} (${role})` : role;
      one = one.parentElement ?? one.getRootNode().host;
    }
    return element?.localName && element !== document.body && element !== document.documentElement ? words(element) : "";
  };
  const words = (element) => isSecret(element) || FIELDS.has(element.localName) ? "" : (element.innerText ?? "").replace(/\s+/g, " ").trim().slice(0, 80);
  const keys = (event) => MODIFIERS.filter((name) => event.key !== name && event.getModifierState(name)
    && !(event.getModifierState("AltGraph") && ["Control", "Alt"].includes(name)));
  const place = (event) => ({x: event.clientX, y: event.clientY, width: innerWidth, height: innerHeight, held: keys(event)});
  // Tells what is typed, once it is known where: a field within a closed root is found a moment later.
  const typed = (tell, element = document.activeElement) => {
    const at = focusIn(element);
    if (later.length || !known(at)) later.push([tell, element]);
    else tell(isSecret(at));
  };
  const type = (event, text) => typed((secret) => say("text", event, {text: secret ? "" : text, secret}));

  const on = {
    pointerdown(event) {
      const element = pointed(event);
      known(element);
      say("press", event, {...place(event), button: event.button + 1, label: label(element)});
      // The list that opens takes the pointer: what is told of its release comes after the choice, and elsewhere.
      listed = event.button === 0 && element?.localName === "select" && !element.multiple && element.size <= 1;
      if (listed) say("release", event, {...place(event), button: 1});
    },
    pointerup(event) { if (listed) listed = false; else say("release", event, {...place(event), button: event.button + 1}); },
    drop(event) { say("release", event, {...place(event), button: 1}); },
    dragend(event) { say("release", event, {...place(event), button: 1}); },
    pointerover(event) {
      const element = pointed(event);
      known(element);
      element.computedName;  // names are made when they are first asked for
      if (window !== top && !inside) { inside = true; say("inside"); }
    },
    wheel(event) {
      const across = Math.abs(event.deltaX) > Math.abs(event.deltaY), back = (across ? event.deltaX : event.deltaY) < 0;
      const button = (across ? 6 : 4) + (back ? 0 : 1);
      if (event.ctrlKey || (button === turned.button && event.timeStamp - turned.at < 100)) return;
      turned = {button, at: event.timeStamp};
      say("press", event, {...place(event), button, label: ""});
    },
    keydown(event) { key("key_down", event); if (!nameless(event)) held.add(event.code); },
    keyup(event) { key("key_up", event); held.delete(event.code); },
    blur(event) { if (event.target === window) held.clear(); },
    focusin(event) {
      const path = event.composedPath(), element = path[0];
      for (const root of path) if (root instanceof ShadowRoot) hear(root);
      if (element.localName?.includes("-") && asked.get(element) === "none") asked.delete(element);  // it may have a root by now
      const at = focusIn(element);
      known(at);
      isSecret(at);
      tell();
    },
    compositionstart() { composing = true; },
    compositionend(event) {
      if (composing && event.data) type(event, event.data);
      composing = false;
    },
    input(event) {  // what no key has typed: pasted by the menu, dropped, chosen from a list of the browser's
      if (composing || held.size || !(event instanceof InputEvent) || event.inputType === "insertCompositionText") return;
      if (event.data) type(event, event.data);
      else if (event.inputType.startsWith("insertFrom") && event.dataTransfer) type(event, event.dataTransfer.getData("text/plain"));
      else say("note", event, {what: "text that the browser itself changed or filled in"});
    },
    change(event) {
      const element = event.composedPath()[0];
      if (element.type === "file") say("file", event, {names: [...element.files].map((file) => file.name)});
      else if (held.size) return;
      else if (element.localName === "select" && !element.multiple && element.size <= 1) {
        const text = isSecret(element) ? "" : element.selectedOptions[0]?.label.trim() ?? "";
        say("text", event, {text, enter: true, secret: isSecret(element)});
      } else if (["date", "time", "month", "week", "datetime-local", "color"].includes(element.type)) {
        say("note", event, {what: `a choice in the browser's own ${element.type} picker`});
      }
    },
  };
  // A key that the layout had not when the browser began, such as of a program that types: its text is the field's to tell.
  const nameless = (event) => event.key === "Unidentified" || event.key < " ";
  function key(kind, event) {
    if (event.isComposing || event.keyCode === 229 || nameless(event) || UNTYPED.includes(event.key)) return;
    const held = keys(event), text = [...event.key].length === 1 ? event.key : "", name = text === " " ? "Space" : event.key;
    const command = held.some((one) => one !== "Shift") && !(held.includes("Control") && held.includes("Alt"));
    typed((secret) => {
      const hidden = secret && text !== "" && !command;
      say(kind, event, {key: hidden ? "*" : name, text: hidden ? "*" : text, held, secret});
    });
  }
  const heard = (event) => { if (event.isTrusted || event.type === "compositionend") on[event.type](event); };
  function hear(root) {  // a listener that is there already is not added again
    for (const name of root === window ? Object.keys(on) : ["change"]) root.addEventListener(name, heard, {capture: true, passive: true});
  }
  globalThis.flywheelRecorder = {
    host: (id) => waiting.get(id),
    opened(id, root) {
      const element = waiting.get(id);
      waiting.delete(id);
      if (root) closed.set(element, root);
      else asked.set(element, "none");
      focusIn(element);
      for (const [tell, at] of later.splice(0)) typed(tell, at);
    },
    // Where secrets can be read: left, top, width, height as shares of the window.
    boxes() {
      const listed = [...document.querySelectorAll(PLAIN), ...shown].filter((one) => one.isConnected && one.type !== "password" && one.value !== "");
      return listed.map((one) => one.getBoundingClientRect()).map((box) =>
        [box.left / innerWidth, box.top / innerHeight, box.width / innerWidth, box.height / innerHeight]);
    },
  };
  new MutationObserver((changes) => {
    hear(window);  // document.open() has removed the listeners
    for (const one of changes) if (one.oldValue === "password") { secret.add(one.target); shown.add(one.target); }
    tell();
  }).observe(document, {subtree: true, childList: true, attributes: true, attributeFilter: ["type", "autocomplete"], attributeOldValue: true});
  hear(window);
  document.addEventListener("DOMContentLoaded", () => { known(document.body); tell(); });
  if (document.body) known(document.body);
})();
