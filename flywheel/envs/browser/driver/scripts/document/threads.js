// Decoding, hashing, compiling, reading: done on the browser's other threads, in real time, and waited for.
const elsewhere = [
  [HTMLImageElement.prototype, "decode"], [window.FontFace?.prototype, "load"],
  [window.FontFaceSet?.prototype, "load"], [WebAssembly, "compileStreaming instantiateStreaming"],
  [window.CacheStorage?.prototype, "open match has delete keys"],
  [window.Cache?.prototype, "match matchAll add addAll put delete keys"],
  [window.StorageManager?.prototype, "getDirectory estimate persisted"], [window.Permissions?.prototype, "query"],
  [window.IDBFactory?.prototype, "databases"], [window.ImageDecoder?.prototype, "decode"],
];
const words = uncurried(String.prototype.split);
for (const [object, names] of elsewhere)
  for (const name of object ? words(names, " ") : []) if (object[name]) trackMethod(object, name);
// Those that wait for nothing else answer in the order in which they were asked.
const computed = [
  [window, "createImageBitmap"], [Blob.prototype, "text arrayBuffer bytes"],
  [window.OffscreenCanvas?.prototype, "convertToBlob"], [WebAssembly, "compile instantiate"],
  [subtle, "digest sign verify encrypt decrypt generateKey importKey exportKey"],
  [subtle, "deriveBits deriveKey wrapKey unwrapKey"],
  [window.BaseAudioContext?.prototype, "decodeAudioData"], [window.OfflineAudioContext?.prototype, "startRendering"],
];
let last = P.resolve();
const inTurn = (promise) => {
  const before = last, over = begun();
  const answer = new P((resolve, reject) => {
    then(promise, (value) => then(before, () => resolve(value)), (error) => then(before, () => reject(error)));
  });
  last = then(answer, over, over);
  return answer;
};
for (const [object, names] of computed)
  for (const name of object ? words(names, " ") : []) {
    const method = object[name];
    if (method) replace(object, name, { [name](...args) { return inTurn(apply(method, this, args)); } }[name]);
  }
const untilEvents = (object, names, events, target = (made) => made) => {
  for (const name of object ? words(names, " ") : []) {
    const method = object[name];
    replace(object, name, { [name](...args) {
      const made = apply(method, this, args), over = begun();
      for (const event of events) listen(target(made, this), event, over, { once: true });
      return made;
    } }[name]);
  }
};
const asks = ["success", "error", "blocked"];
untilEvents(window.IDBFactory?.prototype, "open deleteDatabase", asks);
const reads = "get getKey getAll getAllKeys count openCursor openKeyCursor";
untilEvents(window.IDBObjectStore?.prototype, `${reads} add put delete clear`, asks);
untilEvents(window.IDBIndex?.prototype, reads, asks);
untilEvents(window.IDBCursor?.prototype, "update delete", asks);
untilEvents(window.IDBCursor?.prototype, "continue advance continuePrimaryKey", asks, (_, cursor) => cursor.request);
untilEvents(window.IDBDatabase?.prototype, "transaction", ["complete", "abort", "error"]);
untilEvents(FileReader.prototype, "readAsText readAsDataURL readAsArrayBuffer readAsBinaryString", ["loadend"],
  (_, reader) => reader);
const toBlob = HTMLCanvasElement.prototype.toBlob;
replace(HTMLCanvasElement.prototype, "toBlob", { toBlob(callback, ...rest) {
  const made = new P((resolve) => apply(toBlob, this, [resolve, ...rest]));
  then(inTurn(made), (blob) => run(callback, [blob]));
} }.toBlob);
// A lock comes from the browser; for one that another tab has the clock waits no longer than for a server.
const request = window.LockManager?.prototype.request;
if (request) replace(LockManager.prototype, "request", { request(name, ...rest) {
  const over = begun(), callback = rest.length ? rest[rest.length - 1] : undefined;
  if (typeof callback === "function")
    rest[rest.length - 1] = function (lock) { over(); return apply(callback, this, [lock]); };
  const answer = apply(request, this, [name, ...rest]);
  then(answer, over, over);
  return answer;
} }.request);

// A task that is to wait does so in page time; a change of views is shown at its end, not on its way.
if (postTask) {
  const promptly = Scheduler.prototype.postTask;
  replace(Scheduler.prototype, "postTask", { postTask(task, options) {
    const wait = number(options?.delay) || 0;
    if (!(wait > 0)) return apply(promptly, this, [task, options]);
    return new P((resolve, reject) => {
      addTimer(() => then(apply(promptly, this, [task, { ...options, delay: 0 }]), resolve, reject), wait, false, []);
    });
  } }.postTask);
}
const transition = Document.prototype.startViewTransition;
if (transition)
  replace(Document.prototype, "startViewTransition", { startViewTransition(...args) {
    const made = apply(transition, this, args);
    made.skipTransition();
    then(made.ready, undefined, () => {}); // it says that it was skipped
    track(made.updateCallbackDone);
    return made;
  } }.startViewTransition);
