// Whether the page is being left: a navigation stops the clock until the next document is there.
const stays = (form, button) => {
  const target = (button && attribute(button, "formtarget")) || attribute(form, "target");
  const method = (button && attribute(button, "formmethod")) || attribute(form, "method") || "get";
  return method.toLowerCase() === "dialog" || (target && !(target === "_self" || here(target)));
};
const onSubmit = (event) => push(core.submits, event);
const onClick = (event) => {
  const link = targetOf(event) instanceof E && closest(targetOf(event), "a[href],area[href]");
  const target = link && attribute(link, "target");
  if (target && !here(target) && !prevented(event) && !event.isTrusted && !mayOpen()) event.preventDefault();
};
const submit = uncurried(HTMLFormElement.prototype.submit);
replace(HTMLFormElement.prototype, "submit", { submit() {
  if (this.isConnected && !stays(this)) core.leaving = true;
  submit(this);
} }.submit);
const within = new WeakSet(); // navigations that the page makes of itself, without another document
if (window.navigation) {
  listen(navigation, "navigate", (event) => {
    core.traversing = false;
    if (event.downloadRequest !== null) push(core.saves, event);
    else if (!event.destination.sameDocument) push(core.moves, event);
  });
  listen(navigation, "navigateerror", () => { core.leaving = false; });
  const intercept = uncurried(NavigateEvent.prototype.intercept);
  replace(NavigateEvent.prototype, "intercept", { intercept(options) {
    intercept(this, options);
    mark(within, this);
  } }.intercept);
  const travel = (name) => {
    const go = History.prototype[name];
    replace(History.prototype, name, { [name](...args) {
      core.traversing = this.length > 1;
      apply(go, this, args);
    } }[name]);
  };
  travel("back"); travel("forward"); travel("go");
}
const onTravelled = () => { core.traversing = false; };
const leaving = () => {
  for (let i = 0; i < core.submits.length; i++) {
    const event = core.submits[i];
    if (!prevented(event) && !stays(targetOf(event), event.submitter)) core.leaving = true;
  }
  for (let i = 0; i < core.moves.length; i++)
    if (!prevented(core.moves[i]) && !has(within, core.moves[i])) core.leaving = true;
  core.submits.length = core.moves.length = 0;
  return core.leaving;
};
