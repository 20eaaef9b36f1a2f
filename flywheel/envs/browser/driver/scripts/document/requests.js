// Requests of scripts, and questions to workers, take no page time: the clock waits for them.
let requests = 0;
const begun = () => {
  const id = `${core.realms.length} ${requests++}`;
  core.pending[id] = true;
  return () => { delete core.pending[id]; };
};
const pending = () => {
  for (const _ in core.pending) return true;
  return false;
};
const track = (promise) => {
  const over = begun();
  then(promise, over, over);
  return promise;
};
const realFetch = window.fetch;
replace(window, "fetch", { fetch(...args) { return track(apply(realFetch, window, args)); } }.fetch);
const trackMethod = (object, name) => {
  const method = object[name];
  replace(object, name, { [name](...args) { return track(apply(method, this, args)); } }[name]);
};
for (const name of ["json", "text", "blob", "arrayBuffer", "formData"]) trackMethod(Response.prototype, name);
const send = XMLHttpRequest.prototype.send;
replace(XMLHttpRequest.prototype, "send", { send(...args) {
  listen(this, "loadend", begun(), { once: true });
  return apply(send, this, args);
} }.send);

// A message, or a task of the scheduler, comes before the next callback.
const trackPosts = (object, name) => {
  const send = object[name];
  replace(object, name, { [name](...args) { core.posted = true; return apply(send, this, args); } }[name]);
};
for (const object of [window, MessagePort.prototype, BroadcastChannel.prototype]) trackPosts(object, "postMessage");
if (postTask) trackPosts(Scheduler.prototype, "postTask");
if (window.scheduler?.yield) trackPosts(Scheduler.prototype, "yield");

// So do pictures, scripts and style sheets that come in later.
const pictures = HTMLImageElement.prototype, source = Object.getOwnPropertyDescriptor(pictures, "src");
const complete = property(pictures, "complete"), setSource = uncurried(source.set);
define(pictures, "src", { ...source, set(value) {
  setSource(this, value);
  if (complete(this) || attribute(this, "loading") === "lazy") return;
  const over = begun();
  listen(this, "load", over, { once: true });
  listen(this, "error", over, { once: true });
} });
const imagesOf = property(Document.prototype, "images"), scriptsOf = property(Document.prototype, "scripts");
const tagged = uncurried(Document.prototype.getElementsByTagName);
const images = imagesOf(document), scripts = scriptsOf(document), links = tagged(document, "link"); // these are live
const loaded = new WeakSet();
const onLoaded = (event) => { if (targetOf(event) instanceof E) mark(loaded, targetOf(event)); };
const onFailed = (event) => {
  const node = targetOf(event) instanceof E ? targetOf(event) : null;
  if (node) mark(loaded, node);
  if (node) note("fault", `could not load ${node.currentSrc || node.src || node.href || node.tagName}`);
  else note("fault", `${event.message} at ${event.filename}:${event.lineno}`);
};
const onRejected = (event) => note("fault", `unhandled rejection: ${event.reason}`);
const onLoad = () => {
  for (let i = 0; i < images.length; i++) mark(loaded, images[i]);
  for (let i = 0; i < scripts.length; i++) mark(loaded, scripts[i]);
  for (let i = 0; i < links.length; i++) mark(loaded, links[i]);
};
const awaited = (node, address) => attribute(node, address) && !has(loaded, node);
const unloaded = () => {
  for (let i = 0; i < images.length; i++)
    if (!complete(images[i]) && awaited(images[i], "src") && attribute(images[i], "loading") !== "lazy") return true;
  if (ready(document) !== "complete") return false;
  for (let i = 0; i < scripts.length; i++) if (awaited(scripts[i], "src") && !scripts[i].noModule) return true;
  for (let i = 0; i < links.length; i++)
    if (awaited(links[i], "href") && links[i].relList.contains("stylesheet") && !links[i].disabled) return true;
  return false;
};
