// Plays fragments of MP4 through Media Source Extensions, close behind the newest data.
//
// Two clocks: the stream's, in seconds of the server's media, and the video element's. They differ
// by an offset that changes only when a new stream begins behind an old one.

const START_AHEAD = 0.35;              // seconds of data before the first picture
const LEAST_AHEAD = 0.15, MOST_AHEAD = 0.5;
const JUMP_BEHIND = 1.0;               // further behind it jumps to the newest data
const CATCH_UP = 1.05, HOLD_BACK = 0.97;
const KEPT_SECONDS = 10;               // of what was played
const HOLE = 0.1;                      // an element stops in front of holes of this length
const TICK_MS = 50;

export class MsePlayer {
  static container = "fmp4";

  static isSupported() {
    const source = globalThis.MediaSource ?? globalThis.ManagedMediaSource;
    return Boolean(source?.isTypeSupported('video/mp4; codecs="avc1.42E01E, mp4a.40.2"'));
  }

  #video;
  #handlers;
  #source = null;
  #buffer = null;
  #mime = "";
  #queue = [];      // parts to append: {bytes} or {offset}
  #offset = null;   // the element's time less the stream's; null: the next packet decides
  #rebase = true;
  #end = 0;         // the element's time of the newest data, queued data included
  #hasStarted = false;  // play() was called
  #timer = 0;
  #picture = 0;
  counts = {jumps: 0, stalls: 0};
  isPlaying = false;  // the first picture stands still for a moment

  // Handlers: picture({streamTime, now, skewMs}) for each shown picture, failed(message).
  constructor(video, handlers) {
    this.#video = video;
    this.#handlers = handlers;
    this.#video.onwaiting = () => {
      if (this.isPlaying) ++this.counts.stalls;
    };
    this.#video.onplaying = () => { this.isPlaying = true; };
    this.#video.onerror = () =>
      this.#handlers.failed(`The browser cannot play the media: ${this.#video.error?.message}`);
    this.#timer = setInterval(() => this.#tend(), TICK_MS);
    this.#awaitPicture();
  }

  // Seconds of data that are not played yet.
  get ahead() {
    const {buffered, currentTime} = this.#video;
    return buffered.length ? buffered.end(buffered.length - 1) - currentTime : 0;
  }

  get frames() {
    const quality = this.#video.getVideoPlaybackQuality();
    return {total: quality.totalVideoFrames, dropped: quality.droppedVideoFrames};
  }

  set muted(value) { this.#video.muted = value; }

  async init(message) {
    if (this.#source && message.mime === this.#mime) return;
    if (this.#source) {
      this.#mime = message.mime;
      this.#queue.push({mime: message.mime});
      return;
    }
    this.#mime = message.mime;
    const Source = globalThis.MediaSource ?? globalThis.ManagedMediaSource;
    this.#source = new Source();
    this.#source.addEventListener("sourceopen", () => this.#open(), {once: true});
    this.#video.src = URL.createObjectURL(this.#source);
  }

  // What follows does not go on with what was played: it is put behind it.
  newStream() { this.#rebase = true; }

  header(packet) { this.#append({bytes: packet.payload}); }

  heard() {}

  media(packet) {
    const time = packet.timeUs / 1e6;
    if (this.#rebase) {
      this.#rebase = false;
      this.#offset = Math.max(this.#end, this.#video.currentTime) - time;
      this.#append({offset: this.#offset});
    }
    this.#append({bytes: packet.payload});
    this.#end = time + packet.durationUs / 1e6 + this.#offset;
  }

  close() {
    clearInterval(this.#timer);
    this.#video.cancelVideoFrameCallback?.(this.#picture);
    this.#video.onwaiting = this.#video.onplaying = this.#video.onerror = null;
    this.#video.pause();
    this.#video.removeAttribute("src");
    this.#video.load();
  }

  #open() {
    URL.revokeObjectURL(this.#video.src);
    this.#buffer = this.#source.addSourceBuffer(this.#mime);
    this.#buffer.mode = "segments";
    this.#buffer.addEventListener("updateend", () => this.#work());
    this.#work();
  }

  #append(part) {
    this.#queue.push(part);
    this.#work();
  }

  #work() {
    while (this.#buffer && !this.#buffer.updating && this.#source.readyState === "open") {
      const part = this.#queue.shift();
      if (!part) return;
      try {
        this.#do(part);
      } catch (error) {
        if (error.name !== "QuotaExceededError") return this.#handlers.failed(error.message);
        this.#queue.unshift(part);
        this.#buffer.remove(0, Math.max(0.001, this.#video.currentTime - 1));
      }
    }
  }

  #do(part) {
    if (part.mime) {
      this.#buffer.changeType(part.mime);
    } else if (part.offset !== undefined) {
      this.#buffer.abort();  // ends the parsing of the old stream
      this.#buffer.timestampOffset = part.offset;
    } else {
      this.#buffer.appendBuffer(part.bytes);
    }
  }

  // Keeps the element near the newest data; called many times a second.
  #tend() {
    const {buffered, currentTime} = this.#video;
    if (buffered.length === 0) return;
    const end = buffered.end(buffered.length - 1);
    if (!this.#hasStarted) return this.#begin(buffered.start(0), end);
    this.#forgetOld(currentTime);
    if (this.#leaveHole()) return;
    const ahead = end - currentTime;
    if (ahead > JUMP_BEHIND) {
      ++this.counts.jumps;
      this.#video.currentTime = end - START_AHEAD;
    } else if (ahead > MOST_AHEAD) {
      this.#video.playbackRate = CATCH_UP;
    } else if (ahead < LEAST_AHEAD) {
      this.#video.playbackRate = HOLD_BACK;
    } else if ((ahead < START_AHEAD) === (this.#video.playbackRate > 1)) {
      this.#video.playbackRate = 1;
    }
  }

  #begin(start, end) {
    if (end - start < START_AHEAD) return;
    this.#hasStarted = true;
    this.#video.currentTime = Math.max(start, end - START_AHEAD);
    this.#video.play().catch(() => {
      // Some browsers let no sound out before a click.
      this.#video.muted = true;
      this.#video.play().catch((error) => this.#handlers.failed(error.message));
    });
  }

  // Jumps over a hole that packets left which never came.
  #leaveHole() {
    const {buffered, currentTime} = this.#video;
    for (let i = 0; i + 1 < buffered.length; ++i) {
      const inside = buffered.start(i) <= currentTime && currentTime < buffered.end(i);
      if (!inside || buffered.end(i) - currentTime > HOLE) continue;
      ++this.counts.jumps;
      this.#video.currentTime = buffered.start(i + 1) + 0.001;
      return true;
    }
    return false;
  }

  #forgetOld(currentTime) {
    const {buffered} = this.#video;
    const isLong = currentTime - buffered.start(0) > KEPT_SECONDS + 2;
    if (isLong && !this.#buffer.updating) this.#buffer.remove(0, currentTime - KEPT_SECONDS);
  }

  #awaitPicture() {
    if (!this.#video.requestVideoFrameCallback) return;
    this.#picture = this.#video.requestVideoFrameCallback((now, picture) => {
      const {currentTime, playbackRate} = this.#video;
      // The element's clock is that of the sound; it stands still within this call.
      const clock = currentTime + playbackRate * (picture.expectedDisplayTime - now) / 1000;
      this.#handlers.picture({
        streamTime: picture.mediaTime - this.#offset,
        shownAt: picture.expectedDisplayTime,
        presented: picture.presentedFrames,
        skewMs: 1000 * (picture.mediaTime - clock),
      });
      this.#awaitPicture();
    });
  }
}
