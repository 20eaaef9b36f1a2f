// Seeded chance: `Math.random` and the numbers of `crypto`.
const generator = (seed) => {
  const state = { value: seed >>> 0 };
  const next = () => {
    core.drawn += 1;
    state.value = (state.value + 0x6d2b79f5) >>> 0;
    let t = imul(state.value ^ (state.value >>> 15), state.value | 1);
    t = (t + imul(t ^ (t >>> 7), t | 61)) ^ t;
    return (t ^ (t >>> 14)) >>> 0;
  };
  return { state, next };
};
// Each document of an episode has numbers of its own, and keys are not drawn from what Math.random gives.
const chance = generator(config.seed + imul(before.number, 0x9e3779b1));
const keys = generator(config.seed + imul(before.number + 1, 0x85ebca6b) + 1);
Math.random = function random() { return chance.next() / 4294967296; };
const Bytes = Uint8Array;
const fill = (array) => {
  const bytes = new Bytes(array.buffer, array.byteOffset, array.byteLength);
  for (let i = 0; i < bytes.length; i++) bytes[i] = keys.next() >>> 24;
  return array;
};
const randomValues = uncurried(Crypto.prototype.getRandomValues);
replace(Crypto.prototype, "getRandomValues", function getRandomValues(array) {
  randomValues(this, array); // for its errors
  return fill(array);
});
if (window.isSecureContext)
  replace(Crypto.prototype, "randomUUID", function randomUUID() {
    const bytes = fill(new Bytes(16));
    let uuid = "";
    for (let i = 0; i < 16; i++) {
      const byte = i === 6 ? (bytes[i] & 15) | 64 : i === 8 ? (bytes[i] & 63) | 128 : bytes[i];
      uuid += (i === 4 || i === 6 || i === 8 || i === 10 ? "-" : "") + (byte < 16 ? "0" : "") + byte.toString(16);
    }
    return uuid;
  });
