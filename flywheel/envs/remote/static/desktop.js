// A desktop, by VNC.
import { socketOf } from "/watch/static/socket.js";
import RFB from "/watch/static/vnc.js";

const AGAIN_MS = 1000;

export function desktop(place, session) {
  let vnc = null;
  let taken = false;
  let open = true;
  const begin = () => {
    if (!open) return;
    place.replaceChildren();
    vnc = new RFB(place, socketOf(session, "screen"), { wsProtocols: ["binary"] });
    vnc.scaleViewport = true;
    vnc.viewOnly = !taken;
    vnc.addEventListener("disconnect", () => setTimeout(begin, AGAIN_MS));
  };
  begin();
  return {
    take(on) {
      taken = on;
      vnc.viewOnly = !on;
      if (on) vnc.focus();
    },
    close() {
      open = false;
      vnc.disconnect();
    },
  };
}
