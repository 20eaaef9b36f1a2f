// Addresses below a session.
export function pathOf(session, what) {
  return `/watch/sessions/${encodeURIComponent(session.id)}/${what}`;
}

export function socketOf(session, what) {
  const address = new URL(pathOf(session, what), location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  return address.href;
}
