// One session with the server: the WebSocket, its messages and packets, and going on after the
// connection was lost. The messages are described in the guide, "The avatar live".

export const PacketType = {sound: 1, header: 2, media: 3, heard: 4};
export const PacketFlag = {key: 1, silence: 2, last: 4};
export const SOUND_RATE = 16000;  // of what this page sends

const HEADER_BYTES = 24;
const MAGIC = 0x54464557;  // "WEFT", little endian
const FIRST_WAIT_MS = 250, LONGEST_WAIT_MS = 4000;
const SILENT_MS = 10000;  // A connection that brings nothing for so long is taken for lost.

// The parts of a packet of media, or null where the bytes are none.
export function readPacket(buffer) {
  if (buffer.byteLength < HEADER_BYTES) return null;
  const view = new DataView(buffer);
  if (view.getUint32(0, true) !== MAGIC) return null;
  return {
    type: view.getUint16(4, true),
    flags: view.getUint16(6, true),
    number: view.getUint32(8, true),
    durationUs: view.getUint32(12, true),
    timeUs: Number(view.getBigInt64(16, true)),
    payload: new Uint8Array(buffer, HEADER_BYTES),
  };
}

// A packet of sound; `samples` is an Int16Array.
function soundPacket(number, firstSample, samples, isLast) {
  const bytes = new ArrayBuffer(HEADER_BYTES + 2 * samples.length);
  const view = new DataView(bytes);
  view.setUint32(0, MAGIC, true);
  view.setUint16(4, PacketType.sound, true);
  view.setUint16(6, isLast ? PacketFlag.last : 0, true);
  view.setUint32(8, number, true);
  view.setUint32(12, samples.length, true);
  view.setBigInt64(16, BigInt(Math.round(firstSample * 1e6 / SOUND_RATE)), true);
  samples.forEach((value, i) => view.setInt16(HEADER_BYTES + 2 * i, value, true));
  return bytes;
}

// A browser does not tell why a WebSocket was refused; the server's readiness may.
async function whyRefused() {
  try {
    const answer = await fetch("/health/ready", {cache: "no-store", signal: AbortSignal.timeout(3000)});
    if (answer.ok) return "the server refused the connection";
    const body = await answer.json();
    return body.error.message.replace(/\.$/, "");
  } catch {
    return "the server cannot be reached";
  }
}

// Handlers: state(name, words), message(object), packet(packet), lost(), and newStream() where the
// media that follow do not go on with those before.
//
// The states: "stopped", "connecting", "playing" (the session is ready) and "reconnecting".
export class Session {
  #handlers;
  #init;
  #socket = null;
  #timer = 0;
  #watch = 0;
  #token = null;
  #resumeMs = 30000;
  #lostAt = null;    // when the connection was lost
  #attempts = 0;
  #retryAfterMs = 0;  // as the server asked
  #lastMediaUs = -1;
  #lastHeardAt = 0;
  #isReady = false;
  #isStopped = false;
  #waiting = [];  // messages for when the session is ready
  #soundNumber = 0;
  #sentSamples = 0;

  // `init` holds the fields of session_init.
  constructor(init, handlers) {
    this.#init = init;
    this.#handlers = handlers;
  }

  get isReady() { return this.#isReady; }

  start() {
    this.#handlers.state("connecting", "Connecting.");
    this.#watch = setInterval(() => this.#checkAlive(), 1000);
    this.#connect();
  }

  stop(words = "Stopped.") {
    this.#isStopped = true;
    clearTimeout(this.#timer);
    clearInterval(this.#watch);
    const socket = this.#socket;
    this.#socket = null;  // what it still brings is not for us
    this.#isReady = false;
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({type: "close"}));
    socket?.close(1000);
    this.#handlers.state("stopped", words);
  }

  // Sends now, or as soon as the session is ready.
  send(message) {
    if (this.#isReady) this.#socket.send(JSON.stringify(message));
    else this.#waiting.push(message);
  }

  // The samples that the face speaks. False where there is no connection: they are lost.
  sendSound(samples, isLast) {
    if (!this.#isReady) return false;
    this.#socket.send(soundPacket(this.#soundNumber++, this.#sentSamples, samples, isLast));
    this.#sentSamples += samples.length;
    return true;
  }

  // As if the network had failed; for tests.
  dropConnection() { this.#socket?.close(); }

  #connect() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/v1/stream`);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    let hasOpened = false;
    socket.onopen = () => {
      hasOpened = true;
      this.#lastHeardAt = performance.now();
      this.#greet();
    };
    socket.onmessage = (event) => {
      if (this.#socket !== socket) return;
      this.#lastHeardAt = performance.now();
      if (typeof event.data === "string") this.#receive(JSON.parse(event.data));
      else this.#receivePacket(event.data);
    };
    socket.onclose = (event) => {
      if (this.#socket === socket) this.#closed(event, hasOpened);
    };
  }

  // The first message of a connection: an old session goes on as long as the server keeps it.
  #greet() {
    if (this.#token && this.#lostAt !== null && performance.now() - this.#lostAt > this.#resumeMs) {
      this.#forget("The session was lost for too long");
    }
    const message = this.#token
        ? {type: "session_resume", token: this.#token, time_us: this.#lastMediaUs}
        : {type: "session_init", ...this.#init};
    this.#socket.send(JSON.stringify(message));
  }

  #forget(why) {
    this.#token = null;
    this.#lastMediaUs = -1;
    this.#soundNumber = this.#sentSamples = 0;
    this.#handlers.newStream(`${why}: a new session begins.`);
  }

  #receive(message) {
    if (message.type === "session_ready") this.#ready(message);
    if (message.type === "session_closing") this.#retryAfterMs = message.retry_after_ms ?? 0;
    if (message.type === "error" && message.code === "unknown_session") {
      this.#forget("The server does not know the session any more");
      if (!message.fatal) this.#greet();
      return;
    }
    this.#handlers.message(message);
    if (message.type === "error" && message.fatal && !message.retryable) {
      this.stop(`Stopped: ${message.message}`);
    }
  }

  #ready(message) {
    this.#token = message.resume_token;
    this.#resumeMs = 1000 * (message.resume_seconds ?? 30);
    this.#lostAt = null;
    this.#isReady = true;
    this.#handlers.state("playing", message.resumed ? "Connected again." : "Connected.");
    for (const waiting of this.#waiting.splice(0)) this.send(waiting);
  }

  #receivePacket(buffer) {
    const packet = readPacket(buffer);
    if (!packet) return;
    if (packet.type === PacketType.media) {
      this.#lastMediaUs = packet.timeUs;
      this.#attempts = 0;  // a connection that brings nothing was none
    }
    this.#handlers.packet(packet);
  }

  async #closed(event, hasOpened) {
    const wasReady = this.#isReady;
    this.#isReady = false;
    this.#socket = null;
    this.#lostAt ??= performance.now();
    if (wasReady) this.#handlers.lost();
    const reason = hasOpened ? (event.reason || "the connection is lost") : await whyRefused();
    if (this.#isStopped) return;
    // The first time at once: what is buffered may bridge it.
    const grown = Math.min(FIRST_WAIT_MS * 2 ** (this.#attempts - 1), LONGEST_WAIT_MS);
    const own = this.#attempts++ === 0 ? 0 : grown * (0.75 + Math.random() / 2);
    const wait = Math.max(this.#retryAfterMs, own);
    this.#retryAfterMs = 0;
    this.#timer = setTimeout(() => this.#connect(), wait);
    const when = wait > 0 ? `in ${(wait / 1000).toFixed(1)} s` : "now";
    this.#handlers.state("reconnecting", `Not connected: ${reason}. Trying again ${when}.`);
  }

  #checkAlive() {
    if (this.#isReady && performance.now() - this.#lastHeardAt > SILENT_MS) this.#socket.close();
  }
}
