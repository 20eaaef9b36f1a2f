// Dispatch a long press, at a point in pixels. A field under it gets selected, as by Android's "Select all".
(x, y) => {
  const at = document.elementFromPoint(x, y);
  if (!at) return;
  const event = new PointerEvent("contextmenu", { bubbles: true, cancelable: true, composed: true,
    clientX: x, clientY: y, pointerType: "touch" });
  const field = at.closest("input, textarea");
  if (at.dispatchEvent(event) && field && "selectionStart" in field) { field.focus(); field.select(); }
}
