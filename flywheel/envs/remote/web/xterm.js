// The terminal, as one file that the node serves: https://github.com/xtermjs/xterm.js (MIT).
export { FitAddon } from "@xterm/addon-fit";
export { Terminal } from "@xterm/xterm";
