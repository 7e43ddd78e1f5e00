// Elements and numbers. All text goes through `textContent` or attributes: nothing that a task says
// is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const child of children) {
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

// Returns an HTML element.
export function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

// Returns an SVG element.
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

// Returns a drawing of a width and height in its own units, with a description for screen readers.
export function chart(width, height, label, ...children) {
  return svg("svg", {viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": label}, ...children);
}

// Returns the width of an element's content: letters keep their size in a drawing of that width.
export function widthOf(element) {
  return Math.max(240, element.clientWidth || 460);
}

// Numbers as text; "–" for unknown ones.

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(100 * share)} %`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  for (const unit of ["B", "KB", "MB"]) {
    if (count < 1000) return unit === "B" ? `${Math.round(count)} B` : `${count.toFixed(1)} ${unit}`;
    count /= 1000;
  }
  return `${count.toFixed(1)} GB`;
}

export function seconds(value) {
  return value < 0.001 ? `${Math.round(1e6 * value)} µs` : value < 1 ? `${(1000 * value).toFixed(1)} ms` : `${value.toFixed(2)} s`;
}

// Returns a time of minutes, hours or days with two parts at most: "3 h 20 min".
export function duration(value) {
  if (value === null || value === undefined) return "–";
  const minutes = Math.round(value / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (value < 60) return `${Math.ceil(value)} s`;
  if (!hours) return `${minutes} min`;
  return days ? `${days} d ${hours % 24} h` : `${hours} h ${minutes % 60} min`;
}
