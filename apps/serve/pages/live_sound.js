// Sound that goes to the server: the microphone, with a decision of who speaks, and files.
import {SOUND_RATE} from "./live_session.js";

const BLOCK_SAMPLES = 640;  // 40 ms, the length of a picture
const FILE_LEAD_MS = 400;   // A file is sent so far ahead of its playing.

function toS16(samples) {
  const out = new Int16Array(samples.length);
  for (let i = 0; i < samples.length; ++i) {
    out[i] = Math.round(32767 * Math.max(-1, Math.min(1, samples[i])));
  }
  return out;
}

const LOUD = 3, LEAST = 0.008;           // speech is so many times as loud as the noise; of full scale
const BEGIN_BLOCKS = 2, END_BLOCKS = 12;  // 80 ms of speech begin a turn, 480 ms of silence end it

// Tells speech from the noise of the room by its loudness. The estimate of the noise follows a fall
// at once and a rise slowly.
export class SpeechDetector {
  #noise = 0.01;
  #loud = 0;
  #quiet = 0;
  isSpeech = false;

  // Takes a block's root mean square; true where isSpeech has changed.
  hear(rms) {
    const isLoud = rms > Math.max(LEAST, LOUD * this.#noise);
    this.#noise = rms < this.#noise ? 0.7 * this.#noise + 0.3 * rms : Math.min(0.05, this.#noise * 1.005);
    this.#loud = isLoud ? this.#loud + 1 : 0;
    this.#quiet = isLoud ? 0 : this.#quiet + 1;
    const before = this.isSpeech;
    if (this.#loud >= BEGIN_BLOCKS) this.isSpeech = true;
    if (this.#quiet >= END_BLOCKS) this.isSpeech = false;
    return this.isSpeech !== before;
  }
}

// Handlers: level(rms, isSpeech), speech(isSpeech) where it changes, and block(Int16Array, isLast)
// with the sound of speech, from shortly before its detection.
export class Microphone {
  static KEPT_BLOCKS = 6;
  #handlers;
  #context = null;
  #stream = null;
  #node = null;
  #detector = new SpeechDetector();
  #recent = [];

  constructor(handlers) { this.#handlers = handlers; }

  get isOn() { return this.#context !== null; }

  async start() {
    if (!navigator.mediaDevices) {
      throw new Error("The browser gives pages a microphone only over HTTPS or from localhost.");
    }
    const wanted = {echoCancellation: true, noiseSuppression: true, channelCount: 1};
    this.#stream = await navigator.mediaDevices.getUserMedia({audio: wanted});
    this.#context = new AudioContext();
    const source = this.#context.createMediaStreamSource(this.#stream);
    const hear = (block) => this.#hear(block);
    if (this.#context.audioWorklet) {
      await this.#context.audioWorklet.addModule("/pages/live_worklet.js");
      this.#node = new AudioWorkletNode(this.#context, "recorder", {
        numberOfOutputs: 0,
        processorOptions: {rate: SOUND_RATE, blockSamples: BLOCK_SAMPLES},
      });
      this.#node.port.onmessage = ({data}) => hear(data);
      source.connect(this.#node);
    } else {
      throw new Error("The browser has no AudioWorklet, which the microphone needs.");
    }
  }

  stop() {
    if (!this.isOn) return;
    if (this.#detector.isSpeech) this.#end();
    if (this.#node) this.#node.port.onmessage = null;
    this.#stream.getTracks().forEach((track) => track.stop());
    this.#context.close();
    this.#context = this.#stream = this.#node = null;
    this.#detector = new SpeechDetector();
    this.#recent = [];
  }

  #hear(samples) {
    const rms = Math.sqrt(samples.reduce((sum, value) => sum + value * value, 0) / samples.length);
    const hasChanged = this.#detector.hear(rms);
    const {isSpeech} = this.#detector;
    this.#handlers.level(rms, isSpeech);
    const block = toS16(samples);
    if (hasChanged && isSpeech) {
      this.#handlers.speech(true);
      for (const kept of this.#recent.splice(0)) this.#handlers.block(kept, false);
    }
    if (isSpeech) {
      this.#handlers.block(block, false);
    } else if (hasChanged) {
      this.#end();
    } else {
      this.#recent.push(block);
      if (this.#recent.length > Microphone.KEPT_BLOCKS) this.#recent.shift();
    }
  }

  #end() {
    this.#handlers.block(new Int16Array(0), true);
    this.#handlers.speech(false);
  }
}

// The samples of a sound file, at the rate that the page sends.
export async function readSoundFile(file) {
  const context = new OfflineAudioContext(1, 1, SOUND_RATE);
  const sound = await context.decodeAudioData(await file.arrayBuffer());
  const mixed = new Float32Array(sound.length);
  for (let c = 0; c < sound.numberOfChannels; ++c) {
    sound.getChannelData(c).forEach((value, i) => { mixed[i] += value / sound.numberOfChannels; });
  }
  return toS16(mixed);
}

// Sends samples at the pace at which they are spoken, slightly ahead. `send` returns false where
// nothing can be sent now; the rest is then kept back.
export class PacedSender {
  #samples;
  #send;
  #done;
  #at = 0;
  #began = performance.now();
  #timer;

  constructor(samples, send, done) {
    this.#samples = samples;
    this.#send = send;
    this.#done = done;
    this.#timer = setInterval(() => this.#work(), 20);
  }

  stop() { clearInterval(this.#timer); }

  #work() {
    const now = performance.now();
    const due = (now - this.#began + FILE_LEAD_MS) * SOUND_RATE / 1000;
    while (this.#at < this.#samples.length && this.#at < due) {
      const block = this.#samples.subarray(this.#at, this.#at + 2 * BLOCK_SAMPLES);
      const isLast = this.#at + block.length === this.#samples.length;
      if (!this.#send(block, isLast)) {
        this.#began = now - this.#at * 1000 / SOUND_RATE;  // no catching up later
        return;
      }
      this.#at += block.length;
    }
    if (this.#at < this.#samples.length) return;
    this.stop();
    this.#done();
  }
}
