// A thought that is spoken: the microphone is open from `start` to `stop`, and at no other time.
const REASONS = {
  NotFoundError: "There is no microphone here: type the thought.",
  NotAllowedError: "The browser does not let this page use the microphone: allow it, or type the thought.",
  NotReadableError: "The microphone is used by another program: type the thought.",
};

export class Speech {
  #stream = null;
  #context = null;
  #blocks = [];

  get open() {
    return this.#context !== null;
  }

  /** Return for how many seconds it has listened. */
  get seconds() {
    return this.#blocks.reduce((sum, block) => sum + block.length, 0) / (this.#context?.sampleRate ?? 1);
  }

  /** Open the microphone. Throws an Error with words for the person. */
  async start() {
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new Error("Browsers open the microphone for pages at 127.0.0.1 and over https alone: type the thought.");
    }
    try {
      this.#stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    } catch (error) {
      throw new Error(REASONS[error.name] ?? `The microphone cannot be opened (${error.name}): type the thought.`);
    }
    this.#blocks = [];
    this.#context = new AudioContext();
    try {
      await this.#context.audioWorklet.addModule(new URL("samples.js", import.meta.url));
      const node = new AudioWorkletNode(this.#context, "samples");
      node.port.onmessage = ({ data }) => this.#blocks.push(data);
      this.#context.createMediaStreamSource(this.#stream).connect(node);
      node.connect(this.#context.destination); // it is run only where it leads somewhere
      await this.#context.resume();
    } catch (error) {
      await this.stop();
      throw new Error(`The microphone cannot be read (${error.name}): type the thought.`);
    }
  }

  /** Close the microphone; return the samples of 16 bits, and how many are a second's. */
  async stop() {
    const rate = this.#context.sampleRate;
    for (const track of this.#stream.getTracks()) track.stop();
    await this.#context.close();
    this.#context = this.#stream = null;
    const samples = new Int16Array(this.#blocks.reduce((sum, block) => sum + block.length, 0));
    let at = 0;
    for (const block of this.#blocks) {
      for (const value of block) samples[at++] = Math.max(-1, Math.min(1, value)) * 0x7fff;
    }
    this.#blocks = [];
    return { samples, rate };
  }
}
