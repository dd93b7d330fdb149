// Returns the faults of a page that keep people from using it: controls without a name, ids that
// stand twice, headings that skip a level, pictures without words, and text of too little contrast.
const faults = [];
const label = (node) => node.tagName.toLowerCase() + (node.id ? `#${node.id}` : "");
const visible = (node) => node.checkVisibility();

const wordsOf = (ids) => ids.split(/\s+/).map((id) => document.getElementById(id)?.textContent ?? "").join(" ");
function nameOf(node) {
  const parts = [node.getAttribute("aria-label"), wordsOf(node.getAttribute("aria-labelledby") ?? "")];
  if (["BUTTON", "A", "SUMMARY"].includes(node.tagName)) parts.push(node.textContent);
  for (const each of node.labels ?? []) parts.push(each.textContent);
  return parts.join(" ").trim();
}
for (const node of document.querySelectorAll(
         "button, input, select, textarea, a, summary, meter, output, video, canvas, [role=log], [tabindex]")) {
  if (visible(node) && node.tagName !== "OUTPUT" && !nameOf(node)) faults.push(`${label(node)} has no name`);
}
for (const node of document.querySelectorAll("img:not([alt])")) faults.push(`${label(node)} has no alt`);
if (!document.documentElement.lang) faults.push("the page has no language");
if (document.querySelectorAll("main").length !== 1) faults.push("the page has not one main");
for (const node of document.querySelectorAll("[tabindex]")) {
  if (node.tabIndex > 0) faults.push(`${label(node)} changes the order of Tab`);
}

const seen = new Set();
for (const node of document.querySelectorAll("[id]")) {
  if (seen.has(node.id)) faults.push(`the id ${node.id} stands twice`);
  seen.add(node.id);
}
let level = 0;
for (const node of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
  const next = Number(node.tagName[1]);
  if (next > level + 1) faults.push(`${label(node)} skips a level`);
  level = next;
}

// Contrast as WCAG 2 defines it, for text on backgrounds of one colour.
const colour = (text) => text.match(/[\d.]+/g).map(Number);
const luminance = ([red, green, blue]) => {
  const linear = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
};
function backgroundOf(node) {
  for (; node; node = node.parentElement) {
    const [red, green, blue, alpha = 1] = colour(getComputedStyle(node).backgroundColor);
    if (alpha === 1) return [red, green, blue];
    if (alpha > 0) return null;  // over a picture
  }
  return [255, 255, 255];
}
for (const node of document.querySelectorAll("body *")) {
  const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  if (!hasText || !visible(node) || node.disabled || node.closest("noscript, option")) continue;
  const background = backgroundOf(node);
  if (!background) continue;
  const [darker, lighter] =
      [luminance(colour(getComputedStyle(node).color)), luminance(background)].sort((a, b) => a - b);
  const ratio = (lighter + 0.05) / (darker + 0.05);
  if (ratio < 4.5) faults.push(`${label(node)}: contrast ${ratio.toFixed(2)}, wanted 4.5`);
}
return faults;
