// The live page: joins the controls, the session, the player and the charts.
import {AccessUnitPlayer, JpegPlayer} from "./live_canvas_player.js";
import {Chart} from "./live_charts.js";
import {MsePlayer} from "./live_player.js";
import {PacketFlag, PacketType, SOUND_RATE, Session} from "./live_session.js";
import {Microphone, PacedSender, readSoundFile} from "./live_sound.js";

const element = (id) => document.getElementById(id);
const PLAYERS = [MsePlayer, AccessUnitPlayer, JpegPlayer];  // the first that is supported is taken
const SUPPORTED = await Promise.all(PLAYERS.map((player) => player.isSupported()));
const LONGEST_HUSH_MS = 3000;
const LONG_WAIT_US = 1e6;
const DRAW_MS = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 200;

// The counters of the page, which tests read.
const measures = window.weft = {
  state: "stopped",        // of the page: stopped, connecting, playing, reconnecting
  faceState: null,         // of the face in the picture shown: idle, listening, speaking, interrupted
  container: null,
  firstPictureMs: null,    // from the press of Start
  movesMs: null,           // until the second one
  answerMs: null,          // from the last text sent to the first picture that speaks
  totalFrames: 0,
  droppedFrames: 0,
  jumps: 0,                // of the player: over holes, or to the newest data
  stalls: 0,               // the player ran out of data
  freezes: 0,              // stalls, and pictures that the server repeated
  reconnects: 0,
  newSessions: 0,          // begun because an old one was lost
  packets: 0,
  skipped: 0,              // packets that the server left out because this page was too slow
  skewMs: [],              // of the last 2000 pictures
  longestGapMs: 0,         // between two shown pictures, by the clock
  longestStepMs: 0,        // and by their times in the stream; tests set both to 0
  latencyMs: null,
  aheadMs: null,
  interrupts: [],          // {goneMs}: until the picture shown does not speak, null while it does
  errors: [],
  sessionId: null,
};

let session = null, player = null, sender = null;
let startedAt = 0, textSentAt = null;
let fragments = [];  // {begin, end, arrivedAt, stats, isSilent} in seconds of the stream
let statsOf = new Map();  // by the packet's number, where the stats came first
let serverFreezes = 0, queueMs = 0, turnToldAt = 0;
let picturesShown = 0, picturesAt = 0, firstCount = 0;
let lastPicture = null;
let hush = null;  // {since, until}: no sound before this time of the stream, after an interruption

const charts = {
  latency: new Chart("latency", {unit: "ms", most: 1000}),
  fps: new Chart("fps", {unit: "", digits: 1, most: 30}),
  drift: new Chart("drift", {unit: "ms", digits: 0, least: -60, most: 60, wanted: [-40, 40]}),
  freezes: new Chart("freezes", {unit: "", most: 3, steps: true}),
  queue: new Chart("queue", {unit: "ms", most: 500, steps: true}),
};

// ---- What the page says -------------------------------------------------------------------

function log(words) {
  const item = document.createElement("li");
  const time = document.createElement("time");
  time.textContent = new Date().toLocaleTimeString();
  item.append(time, words);
  const list = element("log");
  list.append(item);
  while (list.children.length > 100) list.firstChild.remove();
  list.scrollTop = list.scrollHeight;
}

function showError(words) {
  element("error").textContent = words;
  element("error").hidden = words === "";
  if (words) {
    measures.errors.push(words);
    log(words);
  }
}

function setState(state, words) {
  if (measures.state === "reconnecting" && state === "playing") ++measures.reconnects;
  measures.state = state;
  element("status").dataset.state = state;
  element("status").textContent = words;
  log(words);
  const isOn = state !== "stopped";
  // The focus must not stay on a button that is disabled.
  const hadFocus = [element("start"), element("stop")].includes(document.activeElement);
  element("start").disabled = isOn;
  element("stop").disabled = !isOn;
  if (hadFocus) element(isOn ? "stop" : "start").focus();
  element("interrupt").disabled = state !== "playing";
  element("veil").hidden = state === "playing" && measures.firstPictureMs !== null;
  element("veil").textContent = words;
}

function showFigures() {
  const rows = {
    "First picture": measures.firstPictureMs && `${Math.round(measures.firstPictureMs)} ms`,
    "Answer to a text": measures.answerMs && `${Math.round(measures.answerMs)} ms`,
    "Ahead of the player": measures.aheadMs && `${Math.round(measures.aheadMs)} ms`,
    "Frames": `${measures.totalFrames}, ${measures.droppedFrames} dropped`,
    "Jumps": measures.jumps,
    "Reconnects": measures.reconnects,
    "Skipped by the server": measures.skipped,
    "Container": measures.container,
  };
  element("figures").replaceChildren(...Object.entries(rows).map(([name, value]) => {
    const row = document.createElement("div");
    row.append(Object.assign(document.createElement("dt"), {textContent: name}),
               Object.assign(document.createElement("dd"), {textContent: value ?? "–"}));
    return row;
  }));
}

// ---- The session ----------------------------------------------------------------------------

function choosePlayer() {
  const wanted = new URLSearchParams(location.search).get("container");
  const named = PLAYERS.find((each) => each.container === wanted);
  if (wanted && !named) {
    const legal = PLAYERS.map((each) => each.container).join(", ");
    throw new Error(`?container= is "${wanted}", legal: ${legal}`);
  }
  const chosen = named ?? PLAYERS.find((each, i) => SUPPORTED[i]);
  if (!chosen) throw new Error("This browser can play none of the forms in which the server sends media.");
  return chosen;
}

function start() {
  if (session) return;
  showError("");
  let Player;
  try {
    Player = choosePlayer();
  } catch (error) {
    showError(error.message);
    return;
  }
  startedAt = performance.now();
  Object.assign(measures, {firstPictureMs: null, movesMs: null, answerMs: null, container: Player.container,
                           totalFrames: 0, droppedFrames: 0, skewMs: [], interrupts: []});
  fragments = [];
  lastPicture = null;
  statsOf = new Map();
  picturesShown = 0;
  picturesAt = 0;
  serverFreezes = 0;
  Object.values(charts).forEach((chart) => chart.clear());
  const isVideo = Player === MsePlayer;
  element("video").hidden = !isVideo;
  element("canvas").hidden = isVideo;
  player = new Player(element(isVideo ? "video" : "canvas"),
                      {picture: pictureShown, failed: showError});
  endHush();
  session = new Session(
      {container: Player.container, audio: {codec: "pcm_s16le", channels: 1, rate: SOUND_RATE}, ...look()},
      {state: sessionState, message: receive, packet: receivePacket, lost: connectionLost, newStream});
  session.start();
}

function stop() {
  session?.stop();
}

function sessionState(state, words) {
  setState(state, words);
  element("speak-file").disabled = !element("file").files.length || state === "stopped";
  if (state === "stopped") endSession();
}

function endSession() {
  sender?.stop();
  player?.close();
  session = player = sender = null;
  measures.faceState = null;
  element("state").textContent = "No session";
  element("turn").textContent = "";
}

function connectionLost() {
  measures.faceState = null;
  element("state").textContent = "Connection lost";
}

function newStream(words) {
  ++measures.newSessions;
  player.newStream();
  lastPicture = null;
  fragments = [];
  statsOf.clear();
  log(words);
}

const receivers = {
  session_ready(message) {
    measures.sessionId = message.session_id;
    offerMoods(message.moods ?? [], message.mood);
    element("caption").placeholder = message.caption ?? "";
  },
  queue_status({position, depth, eta_s: eta}) {
    const wait = eta === null || eta === undefined ? "" : `, about ${Math.ceil(eta)} s`;
    const words = `Waiting for a turn, ${position} of ${depth}${wait}`;
    element("turn").textContent = position > 0 ? words : "";
    turnToldAt = performance.now();
  },
  media_init(message) {
    element("canvas").width = message.width;
    element("canvas").height = message.height;
    player.init(message);
  },
  stats(message) {
    const known = fragments.find((fragment) => fragment.number === message.number);
    if (known) known.stats = message;
    else statsOf.set(message.number, message);
    serverFreezes = message.frozen ?? serverFreezes;
    queueMs = message.queue_ms ?? queueMs;
  },
  skipped({packets}) {
    measures.skipped += packets;
    log(`This page was too slow: the server left ${packets} packets out.`);
  },
  flushed({time_us: time}) {
    if (hush) hush.until = time / 1e6;
    log("Interrupted.");
  },
  session_closing({reason}) { log(`The server closes the session: ${reason}.`); },
  error({code, message}) { showError(`${message} (${code})`); },
};

function receive(message) {
  receivers[message.type]?.(message);
}

function receivePacket(packet) {
  if (packet.type === PacketType.header) return player.header(packet);
  if (packet.type === PacketType.heard) return player.heard(packet);
  ++measures.packets;
  const begin = packet.timeUs / 1e6;
  fragments.push({number: packet.number, begin, end: begin + packet.durationUs / 1e6,
                  arrivedAt: performance.now(), isSilent: Boolean(packet.flags & PacketFlag.silence),
                  stats: statsOf.get(packet.number), isShown: false});
  statsOf.delete(packet.number);
  if (fragments.length > 200) fragments.splice(0, 100);
  player.media(packet, Boolean(packet.flags & PacketFlag.key));
}

// ---- What is shown --------------------------------------------------------------------------

const FACE_WORDS = {idle: "The face idles", listening: "The face listens", speaking: "The face speaks",
                    interrupted: "The face was interrupted"};

function pictureShown({streamTime, shownAt, presented, skewMs}) {
  if (measures.firstPictureMs === null) {
    measures.firstPictureMs = shownAt - startedAt;
    element("veil").hidden = true;
    firstCount = presented;
  }
  picturesShown = presented - firstCount;
  if (!player.isPlaying) return;
  if (hush && streamTime >= hush.until) endHush();
  if (lastPicture) {
    measures.movesMs ??= shownAt - startedAt;
    measures.longestGapMs = Math.max(measures.longestGapMs, shownAt - lastPicture.shownAt);
    measures.longestStepMs = Math.max(measures.longestStepMs, 1000 * (streamTime - lastPicture.streamTime));
  }
  lastPicture = {shownAt, streamTime};
  if (measures.skewMs.push(skewMs) > 2000) measures.skewMs.shift();
  // The newest one that fits: after an interruption an old one may have the same time.
  const fragment = fragments.findLast(({begin, end}) => begin <= streamTime + 0.001 && streamTime < end);
  if (!fragment) return;
  const state = fragment.stats?.state ?? (fragment.isSilent ? "idle" : "speaking");
  showFaceState(state, shownAt);
  if (fragment.isShown) return;
  fragment.isShown = true;
  measures.latencyMs = serverMs(fragment.stats) + shownAt - fragment.arrivedAt;
  charts.latency.add(measures.latencyMs);
}

// From the arrival of the sound to the sending. From the start of drawing where there is no sound,
// and where it waited long for its turn to be spoken, as a text's does.
function serverMs(stats) {
  if (!stats?.infer_start || !stats.emit_ts) return 0;
  const heard = stats.audio_recv_ts ?? stats.infer_start;
  const hasWaited = stats.infer_start - heard > LONG_WAIT_US;
  return (stats.emit_ts - (hasWaited ? stats.infer_start : heard)) / 1000;
}

function showFaceState(state, shownAt) {
  if (state === "speaking" && textSentAt !== null) {
    measures.answerMs = shownAt - textSentAt;
    textSentAt = null;
  }
  if (state !== "speaking") {
    for (const interrupt of measures.interrupts) interrupt.goneMs ??= shownAt - interrupt.pressedAt;
  }
  if (measures.faceState === state) return;
  measures.faceState = state;
  element("state").textContent = FACE_WORDS[state] ?? state;
}

function measure() {
  if (!player || measures.state === "stopped") return;
  const now = performance.now();
  if (hush && now - hush.since > LONGEST_HUSH_MS) endHush();
  if (now - turnToldAt > 2500) element("turn").textContent = "";  // nobody says when the wait is over
  const {total, dropped} = player.frames;
  Object.assign(measures, {
    totalFrames: total, droppedFrames: dropped, jumps: player.counts.jumps, stalls: player.counts.stalls,
    freezes: player.counts.stalls + serverFreezes, aheadMs: 1000 * player.ahead,
  });
  if (measures.movesMs !== null) {
    charts.drift.add(measures.skewMs.at(-1));
    charts.freezes.add(measures.freezes);
    charts.queue.add(queueMs);
    if (now - picturesAt > 1000) {
      if (picturesAt > 0) charts.fps.add(1000 * (picturesShown - measure.before) / (now - picturesAt));
      measure.before = picturesShown;
      picturesAt = now;
    }
  }
  Object.values(charts).forEach((chart) => chart.draw());
  showFigures();
}

// ---- The inputs -----------------------------------------------------------------------------

// The fields of session_init and of prompt that the user has filled in.
function look() {
  const caption = element("caption").value.trim(), mood = element("mood").value;
  return {...(caption && {caption}), ...(mood && {mood})};
}

function offerMoods(moods, current) {
  const select = element("mood");
  const chosen = select.value;
  select.replaceChildren(new Option(`as the server chose (${current})`, ""),
                         ...moods.map((mood) => new Option(mood, mood)));
  select.value = moods.includes(chosen) ? chosen : "";
}

function speakText() {
  const text = element("speak").value.trim();
  if (!text) return element("speak").focus();
  start();
  if (!session) return;
  session.send({type: "text", text});
  textSentAt = performance.now();
  log(`Said: ${text.length > 60 ? text.slice(0, 60) + "…" : text}`);
}

async function speakFile() {
  const [file] = element("file").files;
  if (!file || !session) return;
  try {
    const samples = await readSoundFile(file);
    sender?.stop();
    sender = new PacedSender(samples, (block, isLast) => session?.sendSound(block, isLast) ?? false,
                             () => log(`${file.name} is sent.`));
    log(`Speaking ${file.name}, ${(samples.length / SOUND_RATE).toFixed(1)} s.`);
  } catch (error) {
    showError(`${file.name} cannot be read as sound: ${error.message}`);
  }
}

function interrupt() {
  if (measures.state !== "playing") return;
  sender?.stop();
  sender = null;
  measures.interrupts.push({pressedAt: performance.now(), goneMs: null});
  if (measures.interrupts.length > 100) measures.interrupts.shift();
  session.send({type: "flush"});
  // What is on its way to the screen cannot be called back, but it need not be heard.
  hush = {since: performance.now(), until: Infinity};
  applyMute();
}

function endHush() {
  hush = null;
  applyMute();
}

const microphone = new Microphone({
  level(rms, isSpeech) {
    element("level").value = Math.min(1, 3 * rms);
    element("talking").textContent = isSpeech ? "speech" : "silence";
  },
  // While the user speaks to the face, it listens; what it was saying ends.
  speech(isSpeech) {
    if (!session?.isReady || usesMicrophone() !== "listen") return;
    if (isSpeech && measures.faceState === "speaking") interrupt();
    session.send({type: "listen", on: isSpeech});
  },
  block(samples, isLast) {
    if (usesMicrophone() === "repeat") session?.sendSound(samples, isLast);
  },
});

function usesMicrophone() {
  return document.querySelector("input[name=microphone-use]:checked").value;
}

async function toggleMicrophone() {
  const button = element("microphone");
  try {
    if (microphone.isOn) microphone.stop();
    else await microphone.start();
  } catch (error) {
    microphone.stop();
    showError(`The microphone cannot be used: ${error.message}`);
  }
  button.setAttribute("aria-pressed", String(microphone.isOn));
  element("talking").textContent = microphone.isOn ? "silence" : "off";
  if (!microphone.isOn) element("level").value = 0;
  log(microphone.isOn ? "The microphone is on." : "The microphone is off.");
}

function toggleMute() {
  const button = element("mute");
  const isMuted = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(isMuted));
  applyMute();
}

function applyMute() {
  if (player) player.muted = hush !== null || element("mute").getAttribute("aria-pressed") === "true";
}

// ---- Controls -------------------------------------------------------------------------------

const SHORTCUTS = {
  s: () => (session ? stop() : start()),
  i: interrupt,
  t: () => element("speak").focus(),
  m: toggleMicrophone,
};

function pressKey(event) {
  if (event.key === "Escape") return interrupt();
  if (!element("shortcuts").checked || event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
  const takesText = event.target.closest("textarea, select, input:not([type=radio], [type=checkbox], [type=file])");
  const action = SHORTCUTS[event.key.toLowerCase()];
  if (takesText || !action) return;
  event.preventDefault();
  action();
}

element("start").onclick = start;
element("stop").onclick = stop;
element("interrupt").onclick = interrupt;
element("mute").onclick = toggleMute;
element("microphone").onclick = toggleMicrophone;
element("speak-form").onsubmit = (event) => {
  event.preventDefault();
  speakText();
};
element("speak").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  speakText();
};
element("file").onchange = () => { element("speak-file").disabled = !element("file").files.length || !session; };
element("speak-file").onclick = speakFile;
element("look-form").onsubmit = (event) => {
  event.preventDefault();
  const change = look();
  if (Object.keys(change).length === 0) return log("Neither a caption nor a mood is chosen.");
  if (!session) return log("The look holds from the start on.");
  session.send({type: "prompt", ...change});
  log("The look changes with the next turn.");
};
addEventListener("keydown", pressKey);
addEventListener("pagehide", () => session?.stop());
setInterval(measure, DRAW_MS);
showFigures();
measures.dropConnection = () => session?.dropConnection();  // as a failing network would
