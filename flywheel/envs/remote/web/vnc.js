// The viewer of desktops, as one file that the node serves: https://github.com/novnc/noVNC (MPL 2.0).
import rfb from "@novnc/novnc/lib/rfb.js";

export default rfb.default ?? rfb;
