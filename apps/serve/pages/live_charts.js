// Small charts of the last half minute, drawn on canvases.

const SECONDS = 30;
const PAD = 4;

export class Chart {
  #canvas;
  #output;
  #options;
  #points = [];  // {at, value}, value null for a gap

  // Options: unit, digits, least and most (the least range of the axis), steps (values hold until
  // the next one) and wanted ([low, high], drawn as a band).
  constructor(name, options) {
    this.#canvas = document.getElementById(name);
    this.#output = document.getElementById(`${name}-value`);
    this.#options = {digits: 0, least: 0, most: 1, ...options};
  }

  clear() {
    this.#points = [];
    this.#output.value = "–";
    this.draw();
  }

  add(value) {
    const at = performance.now();
    this.#points.push({at, value});
    while (this.#points[0].at < at - 1000 * SECONDS) this.#points.shift();
  }

  draw() {
    const {unit, digits} = this.#options;
    const last = this.#points.at(-1)?.value;
    if (last !== undefined && last !== null) this.#output.value = `${last.toFixed(digits)} ${unit}`;
    this.#canvas.setAttribute("aria-label", this.#spoken());
    const ratio = devicePixelRatio || 1;
    const width = this.#canvas.clientWidth, height = this.#canvas.clientHeight;
    if (width === 0) return;  // hidden
    if (this.#canvas.width !== Math.round(width * ratio)) {
      this.#canvas.width = Math.round(width * ratio);
      this.#canvas.height = Math.round(height * ratio);
    }
    const context = this.#canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this.#drawLines(context, width, height);
  }

  #range() {
    const values = this.#points.map(({value}) => value).filter((value) => value !== null);
    return [Math.min(this.#options.least, ...values), Math.max(this.#options.most, ...values)];
  }

  #spoken() {
    const title = this.#output.closest("figcaption").firstChild.textContent.trim();
    const {unit, digits} = this.#options;
    const values = this.#points.map(({value}) => value).filter((value) => value !== null);
    if (values.length === 0) return `${title}: nothing measured yet`;
    const words = (value) => value.toFixed(digits);
    return `${title}, the last ${SECONDS} seconds: from ${words(Math.min(...values))} to ` +
        `${words(Math.max(...values))} ${unit}, now ${words(values.at(-1))}`;
  }

  #drawLines(context, width, height) {
    const style = getComputedStyle(document.documentElement);
    const [low, high] = this.#range();
    const now = performance.now();
    const x = (at) => width * (1 - (now - at) / (1000 * SECONDS));
    const y = (value) => height - PAD - (height - 2 * PAD) * (value - low) / (high - low);
    context.fillStyle = style.getPropertyValue("--line");
    if (this.#options.wanted) {
      const [from, to] = this.#options.wanted;
      context.globalAlpha = 0.35;
      context.fillRect(0, y(Math.min(to, high)), width, y(Math.max(from, low)) - y(Math.min(to, high)));
      context.globalAlpha = 1;
    }
    context.strokeStyle = style.getPropertyValue("--accent");
    context.lineWidth = 1.5;
    context.beginPath();
    let isFirst = true, before = 0;
    for (const {at, value} of this.#points) {
      if (value === null) {
        isFirst = true;
        continue;
      }
      if (!isFirst && this.#options.steps) context.lineTo(x(at), before);
      before = y(value);
      if (isFirst) context.moveTo(x(at), before);
      else context.lineTo(x(at), before);
      isFirst = false;
    }
    context.stroke();
    context.fillStyle = style.getPropertyValue("--faint");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    context.fillText(high.toFixed(this.#options.digits), 3, 2);
    context.textBaseline = "bottom";
    context.fillText(low.toFixed(this.#options.digits), 3, height - 2);
  }
}
