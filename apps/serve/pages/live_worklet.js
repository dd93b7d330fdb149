// Runs on the browser's audio thread: turns the microphone's sound into blocks of one channel at the
// rate that the page sends.

class Recorder extends AudioWorkletProcessor {
  #ratio;       // input samples of one output sample
  #block;
  #filled = 0;
  #sum = 0;     // of the input samples of the output sample under way
  #weight = 0;  // how many they are; the last may count in part

  constructor({processorOptions: {rate, blockSamples}}) {
    super();
    this.#ratio = sampleRate / rate;
    this.#block = new Float32Array(blockSamples);
  }

  // An output sample is the mean of the input samples that it stands for.
  process([channels]) {
    if (channels.length === 0) return true;  // nothing is connected
    for (let i = 0; i < channels[0].length; ++i) {
      let value = 0;
      for (const channel of channels) value += channel[i] / channels.length;
      let left = 1;
      while (this.#weight + left >= this.#ratio) {
        const part = this.#ratio - this.#weight;
        this.#emit((this.#sum + part * value) / this.#ratio);
        left -= part;
        this.#sum = this.#weight = 0;
      }
      this.#sum += left * value;
      this.#weight += left;
    }
    return true;
  }

  #emit(value) {
    this.#block[this.#filled++] = value;
    if (this.#filled < this.#block.length) return;
    this.port.postMessage(this.#block.slice());
    this.#filled = 0;
  }
}

registerProcessor("recorder", Recorder);
