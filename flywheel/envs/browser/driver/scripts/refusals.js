// After the parts of `document/` in every document: what a page may ask the browser for and does not get here is refused, and noted,
// so that an observer can tell a refusal from a page that does nothing.
(() => {
  "use strict";
  const MARK = "__flywheel_refusals__";
  if (Object.hasOwn(window, MARK)) return; // the window of a frame's first document, which is empty
  Object.defineProperty(window, MARK, { value: true });
  const { note, track } = window.__flywheel__, apply = Reflect.apply, P = Promise;
  const then = Function.prototype.call.bind(P.prototype.then);
  const replace = (object, name, value) =>
    Object.defineProperty(object, name, { value, writable: true, configurable: true, enumerable: true });
  const deny = (what) => note("note", `${what}: denied`);

  // Not even asked for: there is no such thing here, or it has no clock.
  const refuse = (object, name, what) => {
    if (!object || !object[name]) return;
    replace(object, name, function () {
      deny(what);
      return P.reject(new DOMException("Permission denied", "NotAllowedError"));
    });
  };
  refuse(window.MediaDevices?.prototype, "getUserMedia", "camera or microphone");
  refuse(window.MediaDevices?.prototype, "getDisplayMedia", "the screen's picture");
  for (const name of ["showOpenFilePicker", "showSaveFilePicker", "showDirectoryPicker"])
    refuse(window, name, `${name}: the machine's files`);
  refuse(Element.prototype, "requestPointerLock", "holding the mouse");
  refuse(Element.prototype, "requestFullscreen", "full screen");
  refuse(window.ServiceWorkerContainer?.prototype, "register", "a service worker");
  if (window.SharedWorker)
    window.SharedWorker = function SharedWorker() {
      deny("a shared worker");
      throw new DOMException("shared workers have no clock here", "NotSupportedError");
    };
  window.print = function print() { note("note", "print: nothing was printed"); };

  // Asked for, and refused by the browser: each by its promise, or by the word "denied".
  const asked = {
    Bluetooth: { requestDevice: "a Bluetooth device" },
    Clipboard: { read: "reading the clipboard", readText: "reading the clipboard", write: "writing the clipboard" },
    CredentialsContainer: { get: "a password or key", create: "a password or key" },
    Document: { requestStorageAccess: "storage of another site" },
    DocumentPictureInPicture: { requestWindow: "a window of its own" },
    EyeDropper: { open: "a colour of the screen" },
    HID: { requestDevice: "a device" },
    HTMLVideoElement: { requestPictureInPicture: "a window of its own" },
    Keyboard: { lock: "holding the keyboard" },
    Navigator: { requestMIDIAccess: "a MIDI device", share: "sharing" },
    PaymentRequest: { show: "a payment" },
    PushManager: { subscribe: "messages" },
    ScreenOrientation: { lock: "turning the screen" },
    Serial: { requestPort: "a serial port" },
    USB: { requestDevice: "a USB device" },
    WakeLock: { request: "keeping the screen on" },
    XRSystem: { requestSession: "a headset" },
  };
  const watch = (object, name, what) => {
    const real = object?.[name];
    if (typeof real !== "function") return;
    replace(object, name, { [name](...args) {
      const answer = apply(real, this, args);
      if (!(answer instanceof P)) return answer;
      then(track(answer), (said) => { if (said === "denied") deny(what); }, () => deny(what));
      return answer;
    } }[name]);
  };
  for (const owner in asked) for (const name in asked[owner]) watch(window[owner]?.prototype, name, asked[owner][name]);
  watch(window.Notification, "requestPermission", "notifications");
  watch(window.IdleDetector, "requestPermission", "knowing whether the user is there");
  watch(window, "getScreenDetails", "the other screens");
  watch(window, "queryLocalFonts", "the machine's fonts");

  const place = window.Geolocation?.prototype;
  for (const name of ["getCurrentPosition", "watchPosition"]) {
    const real = place?.[name];
    if (!real) continue;
    replace(place, name, { [name](found, failed, ...more) {
      let over;
      track(new P((resolve) => { over = resolve; }));
      const here = (where) => { over(); return found(where); };
      const nowhere = (error) => {
        over();
        deny("place");
        return failed?.(error);
      };
      return apply(real, this, [here, nowhere, ...more]);
    } }[name]);
  }
})();
