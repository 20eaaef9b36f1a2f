// The clipboard. The browser's own is one for all sessions; each has one instead, `core.clipboard`, which its tab hands
// on.
const toText = uncurried(DataTransfer.prototype.getData), command = uncurried(Document.prototype.execCommand);
const dispatch = uncurried(EventTarget.prototype.dispatchEvent), Data = DataTransfer, Pasted = ClipboardEvent;
const clipOf = property(ClipboardEvent.prototype, "clipboardData");
const fillWith = uncurried(DataTransfer.prototype.setData), stop = uncurried(Event.prototype.stopImmediatePropagation);
const cancel = uncurried(Event.prototype.preventDefault), selection = window.getSelection.bind(window);
const keepCopied = (what) => { core.clipboard = core.copied = what; };
const selected = (node) => {
  if (!(node instanceof E) || !matches(node, "input, textarea")) return text(selection());
  return node.type === "password" ? "" : slice(node.value, node.selectionStart ?? 0, node.selectionEnd ?? 0);
};
const onCopy = (event) => {
  const what = prevented(event) ? toText(clipOf(event), "text/plain") : selected(active(document));
  if (what) keepCopied(what);
};
const onPaste = (event) => {
  if (!event.isTrusted) return; // the page's own, or the one below
  stop(event);
  cancel(event);
  const data = new Data(), target = pathTo(event)[0];
  fillWith(data, "text/plain", core.clipboard);
  const own = new Pasted("paste", { clipboardData: data, bubbles: true, cancelable: true, composed: true });
  if (dispatch(target, own) && core.clipboard) command(document, "insertText", false, core.clipboard);
};
if (window.Clipboard)
  replace(Clipboard.prototype, "writeText", { async writeText(what) { keepCopied(text(what)); } }.writeText);
