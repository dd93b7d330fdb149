// Plays pictures on a canvas beside sound of the Web Audio API, where a browser lacks Media Source
// Extensions or MP4: H.264 access units through WebCodecs, or JPEG pictures. The sound's clock is
// the clock of both.

const START_AHEAD = 0.3;  // seconds of data before the first picture
const JUMP_BEHIND = 1.0;  // further behind it jumps to the newest data
const LATE = 0.02;        // Sound that comes later than this has run out.

// Turns payloads into pictures that a canvas draws, in order. decode(packet) hands
// ({time, image}) to `done`.
class JpegDecoder {
  #done;
  constructor(done) { this.#done = done; }
  configure() {}
  close() {}
  async decode(packet) {
    const image = await createImageBitmap(new Blob([packet.payload], {type: "image/jpeg"}));
    this.#done({time: packet.timeUs / 1e6, image});
  }
}

const CODEC = "avc1.42E01E";  // where the server's mime type names none

class AccessUnitDecoder {
  #decoder;
  #waitsForKey = true;
  #codec = CODEC;
  constructor(done, failed) {
    this.#decoder = new VideoDecoder({
      output: (frame) => done({time: frame.timestamp / 1e6, image: frame}),
      error: (error) => {
        this.#waitsForKey = true;
        failed(`The browser cannot decode the pictures: ${error.message}`);
      },
    });
  }
  configure(message) {
    this.#codec = /codecs="?(avc1\.[0-9A-Fa-f]{6})/.exec(message.mime)?.[1] ?? CODEC;
    this.#decoder.configure({codec: this.#codec, optimizeForLatency: true});
    this.#waitsForKey = true;
  }
  decode(packet, isKey) {
    if (this.#decoder.state !== "configured" || (this.#waitsForKey && !isKey)) return;
    this.#waitsForKey = false;
    this.#decoder.decode(new EncodedVideoChunk({type: isKey ? "key" : "delta", timestamp: packet.timeUs,
                                                data: packet.payload}));
  }
  close() {
    if (this.#decoder.state !== "closed") this.#decoder.close();
  }
}

class CanvasPlayer {
  #canvas;
  #handlers;
  #sound = new AudioContext();
  #volume = this.#sound.createGain();
  #decoder;
  #rate = 16000;
  #pictures = [];   // decoded and not shown: {time, image}, by time
  #sources = [];    // sound that is scheduled: {time, end, node}
  #offset = null;   // the sound's clock less the stream's; null: not started
  #shift = 0;       // of the times of a new stream, so that it goes on behind the old one
  #rebase = false;
  #end = 0;         // of the newest data, in shifted stream time
  #next = 0;        // of requestAnimationFrame
  #frames = {total: 0, dropped: 0};
  counts = {jumps: 0, stalls: 0};

  constructor(canvas, handlers, Decoder) {
    this.#canvas = canvas;
    this.#handlers = handlers;
    this.#volume.connect(this.#sound.destination);
    this.#sound.resume();
    this.#decoder = new Decoder((picture) => this.#decoded(picture), handlers.failed);
    this.#next = requestAnimationFrame((now) => this.#draw(now));
  }

  get isPlaying() { return this.#offset !== null; }
  get ahead() { return this.#offset === null ? 0 : this.#end - this.#clock(); }
  get frames() { return this.#frames; }
  set muted(value) { this.#volume.gain.value = value ? 0 : 1; }

  init(message) {
    this.#rate = message.sample_rate ?? this.#rate;
    this.#decoder.configure(message);
  }

  newStream() { this.#rebase = true; }

  header() {}

  // One picture.
  media(packet, isKey) {
    this.#placeStream(packet.timeUs / 1e6);
    const time = packet.timeUs / 1e6 + this.#shift;
    // What was drawn for this time and later is no longer to be shown.
    this.#dropPictures(this.#pictures.findIndex((picture) => picture.time >= time - 0.001));
    this.#end = time + packet.durationUs / 1e6;
    this.#decoder.decode({...packet, timeUs: Math.round(time * 1e6)}, isKey);
    if (this.#offset === null && this.#end - this.#begin >= START_AHEAD) {
      this.#offset = this.#sound.currentTime - this.#begin;
    }
    if (this.ahead > JUMP_BEHIND) this.#move(this.ahead - START_AHEAD, "jumps");
  }
  #begin = 0;

  // The sound of pictures: s16 samples of one channel.
  heard(packet) {
    this.#placeStream(packet.timeUs / 1e6);
    const time = packet.timeUs / 1e6 + this.#shift;
    for (const source of this.#sources.filter((each) => each.time >= time - 0.001)) this.#silence(source);
    const count = packet.payload.byteLength >> 1;
    if (count === 0) return;
    const buffer = this.#sound.createBuffer(1, count, this.#rate);
    const view = new DataView(packet.payload.buffer, packet.payload.byteOffset);
    const samples = buffer.getChannelData(0);
    for (let i = 0; i < count; ++i) samples[i] = view.getInt16(2 * i, true) / 32768;
    this.#sources.push({time, end: time + count / this.#rate, buffer, node: null});
    this.#schedule();
  }

  close() {
    cancelAnimationFrame(this.#next);
    this.#decoder.close();
    this.#dropPictures(0);
    this.#sound.close();
  }

  // The stream's time that is heard now.
  #clock() { return this.#sound.currentTime - (this.#sound.outputLatency || 0) - this.#offset; }

  #placeStream(time) {
    if (this.#rebase) this.#shift = Math.max(this.#end, this.#offset === null ? 0 : this.#clock()) - time;
    else if (this.#end === 0) this.#begin = time;
    this.#rebase = false;
  }

  #schedule() {
    if (this.#offset === null) return;
    for (const source of this.#sources) {
      if (source.node) continue;
      const at = source.time + this.#offset, now = this.#sound.currentTime;
      if (at < now - LATE) this.#move(at - now - START_AHEAD / 2, "stalls");
      source.node = new AudioBufferSourceNode(this.#sound, {buffer: source.buffer});
      source.node.connect(this.#volume);
      source.node.start(Math.max(now, source.time + this.#offset));
    }
    const clock = this.#clock();
    this.#sources = this.#sources.filter(({end}) => end > clock - 1);
  }

  #silence(source) {
    source.node?.stop();
    this.#sources.splice(this.#sources.indexOf(source), 1);
  }

  // Moves the clock forward by `seconds`, or holds it back.
  #move(seconds, count) {
    ++this.counts[count];
    this.#offset -= seconds;
    const clock = this.#clock();
    for (const source of [...this.#sources]) {
      source.node?.stop();
      source.node = null;
      if (source.time < clock) this.#sources.splice(this.#sources.indexOf(source), 1);
    }
  }

  #decoded(picture) {
    this.#pictures.push(picture);
    this.#pictures.sort((a, b) => a.time - b.time);
  }

  // Forgets the pictures from this index on; -1: none.
  #dropPictures(from) {
    if (from < 0) return;
    for (const {image} of this.#pictures.splice(from)) image.close();
  }

  #draw(now) {
    this.#next = requestAnimationFrame((next) => this.#draw(next));
    if (this.#offset === null) return;
    this.#schedule();
    const clock = this.#clock();
    const due = this.#pictures.findLastIndex(({time}) => time <= clock);
    if (due < 0) return;
    const shown = this.#pictures[due];
    this.#canvas.getContext("2d").drawImage(shown.image, 0, 0, this.#canvas.width, this.#canvas.height);
    this.#frames.total += due + 1;
    this.#frames.dropped += due;
    for (const {image} of this.#pictures.splice(0, due + 1)) image.close();
    this.#handlers.picture({streamTime: shown.time - this.#shift, shownAt: now,
                            presented: this.#frames.total - this.#frames.dropped,
                            skewMs: 1000 * (shown.time - clock)});
  }
}

export class AccessUnitPlayer extends CanvasPlayer {
  static container = "annexb";
  static async isSupported() {
    if (!globalThis.VideoDecoder) return false;
    return (await VideoDecoder.isConfigSupported({codec: CODEC})).supported;
  }
  constructor(canvas, handlers) { super(canvas, handlers, AccessUnitDecoder); }
}

export class JpegPlayer extends CanvasPlayer {
  static container = "jpeg";
  static isSupported() { return Boolean(globalThis.AudioContext && globalThis.createImageBitmap); }
  constructor(canvas, handlers) { super(canvas, handlers, JpegDecoder); }
}
