// The microphone's samples, block by block, to the page (`speech.js`). What it puts out is silence.
registerProcessor("samples", class extends AudioWorkletProcessor {
  process([[channel]]) {
    if (channel) this.port.postMessage(channel.slice());
    return true;
  }
});
