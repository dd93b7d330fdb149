// The page of jobs: a form, the job that is shown, and the history. The server tells how the shown
// job goes on; the list is asked for now and then, and answers that did not change cost 304.

const $ = (id) => document.getElementById(id);
const kLater = 3000, kPage = 20;
// The fields of a job that the form has, by the flag that describes them.
const kFields = ["size", "num-frames", "steps", "seed", "negative-prompt"];
const kMore = ["guidance-scale", "fps", "flow-shift", "solver", "method", "cache", "rng"];

// What differs from the words of the command line.
const kLabels = { num_frames: "Frames" };
const kHints = {
  negative_prompt: "what to avoid",
  seed: "the same seed draws the same frames; empty takes a random one",
};

let shown = null; // the id of the job that is shown
let jobs = [];
let counts = {};
let replicas = 1;
let pages = 1;
let timer = 0;
let current = null; // the job that is shown, as it was shown last
let following = null; // whose events are read

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

class Refusal extends Error {
  constructor(status, error) {
    super(error.message || `The server answered ${status}.`);
    this.status = status;
    this.hints = error.hints || [];
  }
}

async function ask(path, options = {}) {
  const response = await fetch(path, options);
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refusal(response.status, body.error || {});
  return body;
}

function set_status(state, text) {
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").dataset.state = state;
}

function show_error(box, message, hints = []) {
  box.replaceChildren(element("p", message));
  if (hints.length > 0) {
    const list = element("ul");
    for (const hint of hints) list.append(element("li", hint));
    box.append(element("p", "What would help:"), list);
  }
  box.hidden = false;
}

// ---- the form

function input_of(flag, standard) {
  const id = `field-${flag.name}`;
  const field = flag.name.replaceAll("-", "_");
  const words = flag.type === "text" && flag.legal ? flag.legal.split("|") : null;
  const wide = field === "negative_prompt" || field === "method";
  const box = element("div", "", wide ? { class: "wide" } : {});
  const words_of = field.replaceAll("_", " ");
  const label = kLabels[field] || words_of[0].toUpperCase() + words_of.slice(1);
  box.append(element("label", label, { for: id }));
  let input;
  if (words) {
    input = element("select");
    input.append(element("option", "as the model says", { value: "" }));
    for (const word of words) input.append(element("option", word, { value: word }));
  } else if (field === "negative_prompt") {
    input = element("textarea", "", { rows: 2 });
  } else {
    input = element("input", "", { type: "text", autocomplete: "off" });
    if (flag.type === "integer" || flag.type === "real") input.inputMode = "decimal";
  }
  input.id = id;
  input.name = field;
  input.setAttribute("aria-describedby", `${id}-hint`);
  if (standard !== undefined && standard !== null && !words) input.placeholder = String(standard);
  const range = flag.type !== "text" && flag.legal ? ` (${flag.legal})` : "";
  box.append(input, element("p", (kHints[field] || flag.help) + range, { id: `${id}-hint`, class: "hint" }));
  return box;
}

async function make_form() {
  const [capabilities, model] = await Promise.all([ask("/v1/capabilities"), ask("/v1/model")]);
  const standard = { ...model.defaults, size: `${model.defaults.width}x${model.defaults.height}`, seed: "random" };
  const flags = capabilities.commands.serve;
  for (const [names, box] of [[kFields, $("fields")], [kMore, $("more-fields")]]) {
    box.replaceChildren();
    for (const name of names) {
      const flag = flags.find((each) => each.name === name);
      if (flag) box.append(input_of(flag, standard[name.replaceAll("-", "_")]));
    }
  }
  replicas = model.replicas;
  show_queue();
  $("about").textContent = `${model.model}, on ${model.device}, layout ${model.layout}`;
}

function form_fields() {
  const fields = {};
  for (const [name, value] of new FormData($("form"))) if (value.trim() !== "") fields[name] = value;
  return fields;
}

function fill_form(request) {
  $("form").reset();
  const fields = { ...request };
  if (fields.width && fields.height) fields.size = `${fields.width}x${fields.height}`;
  for (const [name, value] of Object.entries(fields)) {
    const input = $("form").elements.namedItem(name);
    if (!input) continue;
    input.value = String(value);
    if (input.closest("details") && input.value !== "") $("more").open = true;
  }
  $("prompt").focus();
}

async function submit(event) {
  event.preventDefault();
  if (!$("form").reportValidity()) return;
  $("refused").hidden = true;
  $("draw").disabled = true;
  try {
    const job = await ask("/v1/jobs", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(form_fields()),
    });
    shown = job.id;
    show_job(job);
  } catch (refusal) {
    show_error($("refused"), refusal.message, refusal.hints);
  }
  $("draw").disabled = false;
  look();
}

// ---- the job that is shown

const time_of = (seconds) => (seconds >= 90 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds)} s`);

function state_text(job) {
  if (job.state === "queued") return `Waits, number ${job.queue.position} of ${job.queue.depth}.`;
  if (job.state === "running") return job.attempt > 1 ? `Runs, attempt ${job.attempt}.` : "Runs.";
  return { completed: "Complete.", failed: "Failed.", cancelled: "Cancelled.", expired: "Expired." }[job.state];
}

function detail_text(job) {
  const { percent, stage, step, steps, s_per_step, eta_s } = job.progress;
  if (job.state !== "running" || !stage) return "";
  const parts = [`${Math.floor(percent)} %`, stage.replaceAll("_", " ")];
  if (steps > 1) parts.push(`step ${step} of ${steps}`);
  if (stage === "denoise" && s_per_step > 0) parts.push(`${s_per_step.toFixed(2)} s per step`);
  if (eta_s >= 1) parts.push(`${time_of(eta_s)} left of this stage`);
  return parts.join(", ");
}

function facts_text(job) {
  const { width, height, num_frames, steps, seed } = job.resolved;
  const parts = [`${width}x${height}`, num_frames === 1 ? "a picture" : `${num_frames} frames`, `${steps} steps`, `seed ${seed}`];
  if (job.started && job.finished) parts.push(`took ${time_of((Date.parse(job.finished) - Date.parse(job.started)) / 1000)}`);
  return parts.join(", ");
}

function show_preview(job) {
  $("preview").hidden = !job.preview;
  const url = job.preview ? `${job.preview.url}?step=${job.preview.step}` : "";
  if ($("preview").dataset.url === url) return;
  $("preview").dataset.url = url;
  if (!job.preview) return $("preview").removeAttribute("src");
  $("preview").alt = `What comes of: ${job.request.prompt}`;
  $("preview").src = url;
}

function show_result(job) {
  const output = job.outputs[0];
  const url = output ? output.url : "";
  if ($("result").dataset.url === url) return;
  $("result").dataset.url = url;
  $("result").replaceChildren();
  $("save").hidden = !output;
  if (!output) return;
  $("save").href = url;
  $("save").download = "";
  if (output.mime.startsWith("image/")) {
    $("result").append(element("img", "", { src: url, alt: job.request.prompt }));
    return;
  }
  const video = element("video", "", { src: url, controls: "", loop: "", playsinline: "", "aria-label": `The video of: ${job.request.prompt}` });
  video.muted = true;
  video.autoplay = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  $("result").append(video);
}

function set_text(box, text) {
  if (box.textContent !== text) box.textContent = text; // live regions speak of changes alone
}

function show_job(job) {
  current = job;
  $("none").hidden = Boolean(job);
  $("job").hidden = !job;
  if (!job) return;
  const over = job.finished !== null;
  $("job").dataset.id = job.id;
  $("job").dataset.state = job.state;
  set_text($("job-prompt"), job.request.prompt);
  set_text($("job-state"), state_text(job));
  $("bar").value = job.progress.percent;
  set_text($("job-detail"), detail_text(job));
  set_text($("job-facts"), [facts_text(job), ...job.warnings].join(". "));
  $("job-error").hidden = true;
  if (job.error) show_error($("job-error"), job.error.message, job.error.hints);
  $("cancel").hidden = over;
  $("forget").hidden = !over;
  show_preview(job);
  show_result(job);
}

async function act(path, method) {
  try {
    await ask(path, { method });
  } catch (refusal) {
    show_error($("job-error"), refusal.message, refusal.hints);
  }
  look();
}

// ---- the events of the job that is shown

// Reads them with fetch, because an EventSource can send no key in a header, until the job is over.
async function follow(id) {
  following?.stop.abort();
  following = null;
  $("events").replaceChildren();
  if (!id) return;
  const mine = { id, stop: new AbortController(), last: "", retry: 2000 };
  following = mine;
  while (following === mine) {
    try {
      const headers = mine.last ? { "Last-Event-ID": mine.last } : {};
      const response = await fetch(`/v1/jobs/${id}/events`, { headers, signal: mine.stop.signal });
      if (response.status === 404) return;
      if (response.ok && await read_events(response.body, mine)) return;
    } catch { // the connection broke: the rest comes with the next one
    }
    await new Promise((done) => { setTimeout(done, mine.retry); });
  }
}

// Returns true after the last event.
async function read_events(body, mine) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done || following !== mine) return false;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) if (take_event(event, mine)) return true;
  }
}

function take_event(text, mine) {
  const fields = {};
  for (const line of text.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
  }
  if (fields.id) mine.last = fields.id;
  if (fields.retry) mine.retry = Number(fields.retry);
  if (!fields.event) return false;
  hear(mine.id, fields.event, JSON.parse(fields.data));
  return fields.event === "end";
}

function hear(id, type, data) {
  const words = { state: data.state, log: data.message, error: data.message }[type];
  if (words) {
    const attempt = type === "state" && data.attempt > 1 ? `, attempt ${data.attempt}` : "";
    $("events").append(element("li", `${type}: ${words}${attempt}`));
  }
  if (current?.id !== id) return;
  if (type === "state" || type === "end") look();
  if (current.state !== "running") return;
  if (type === "progress") show_job({ ...current, progress: data });
  if (type === "preview") show_job({ ...current, preview: { ...data, url: `/v1/jobs/${id}/preview` } });
}

// ---- the history

function show_history(has_more) {
  $("no-history").hidden = jobs.length > 0;
  $("older").hidden = !has_more;
  const list = $("history");
  const focused = document.activeElement?.dataset?.id;
  const items = jobs.map((job) => {
    const item = element("li");
    const button = element("button", "", { type: "button", "data-id": job.id, "aria-current": String(job.id === shown) });
    const when = new Date(job.created).toLocaleTimeString();
    const progress = job.state === "running" ? `, ${Math.floor(job.progress.percent)} %` : "";
    button.append(element("span", job.request.prompt, { class: "what" }),
      element("span", `${job.state}${progress}, ${facts_text(job)}, ${when}`, { class: "how" }));
    button.addEventListener("click", () => {
      shown = job.id;
      show_job(job);
      show_history(has_more);
      look();
    });
    item.append(button);
    return item;
  });
  const signature = JSON.stringify(jobs.map((job) => [job.id, job.state, Math.floor(job.progress.percent), job.id === shown]));
  if (list.dataset.signature === signature) return;
  list.dataset.signature = signature;
  list.replaceChildren(...items);
  if (focused) list.querySelector(`[data-id="${focused}"]`)?.focus();
}

async function load_jobs() {
  const all = [];
  let more = true;
  for (let page = 0; page < pages && more; ++page) {
    const after = all.length > 0 ? `&after=${all.at(-1).id}` : "";
    const list = await ask(`/v1/jobs?limit=${kPage}${after}`);
    all.push(...list.data);
    more = list.has_more;
    counts = list.counts;
  }
  jobs = all;
  return more;
}

function show_queue() {
  set_text($("queue"), `${counts.queued} ${counts.queued === 1 ? "waits" : "wait"}, ${counts.running} ` +
    `${counts.running === 1 ? "runs" : "run"}; ${replicas} ${replicas === 1 ? "replica draws" : "replicas draw"}.`);
}

async function look() {
  clearTimeout(timer);
  try {
    const more = await load_jobs();
    if (!shown && jobs.length > 0) shown = jobs[0].id;
    let job = jobs.find((each) => each.id === shown);
    if (shown && !job && more) job = await ask(`/v1/jobs/${shown}`).catch(() => null);
    if (!job) shown = null;
    show_job(job);
    show_history(more);
    if (shown !== (following?.id ?? null)) follow(shown);
    const busy = counts.queued + counts.running;
    show_queue();
    const ready = await fetch("/health/ready");
    const why = ready.ok ? "" : (await ready.json()).error.message;
    set_status(ready.ok ? "playing" : "reconnecting",
      ready.ok ? (busy > 0 ? `Ready, ${busy} under way` : "Ready") : `Not ready: ${why}`);
    if ($("fields").childElementCount === 0) await make_form();
  } catch {
    set_status("reconnecting", "The server does not answer. The page goes on asking.");
  }
  clearTimeout(timer);
  timer = setTimeout(look, document.hidden ? 10 * kLater : kLater);
}

$("form").addEventListener("submit", submit);
$("form").addEventListener("reset", () => { $("refused").hidden = true; });
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
});
$("cancel").addEventListener("click", () => act(`/v1/jobs/${shown}/cancel`, "POST"));
$("forget").addEventListener("click", () => act(`/v1/jobs/${shown}`, "DELETE"));
$("again").addEventListener("click", () => {
  const job = jobs.find((each) => each.id === shown);
  if (job) fill_form(job.request);
});
$("older").addEventListener("click", () => {
  pages += 1;
  look();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
look();
