// The numbers that `fit` logs over its steps, of one task: a chooser, a chart, and the newest values.

import {short, ticks} from "./axis.js";
import {chart, html, svg, widthOf} from "./dom.js";

const HEIGHT = 280, LEFT = 56, RIGHT = 12, TOP = 12, BOTTOM = 36;
const MAX_DOTS = 40;
const VALIDATION = "val_";

// Returns the names without "val_", each once: a number and its validation share a chart.
function metricsOf(curves) {
  const names = Object.keys(curves).map((name) => name.startsWith(VALIDATION) ? name.slice(VALIDATION.length) : name);
  return [...new Set(names)];
}

// Returns the existing curves of a metric: [name, points, class].
function seriesOf(curves, metric) {
  const pairs = [[metric, "training"], [VALIDATION + metric, "validation"]];
  // `Object.hasOwn`: a metric may be called "constructor".
  return pairs.filter(([name]) => Object.hasOwn(curves, name)).map(([name, kind]) => [name, curves[name], kind]);
}

function path(points, x, y) {
  let line = "", begins = true;
  for (const [step, value] of points) {
    if (value !== null) line += `${begins ? "M" : "L"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    begins = value === null;
  }
  return line;
}

// Returns the drawing of a metric; null without a finite value. Points without one are gaps.
function drawing(series, metric, width) {
  const all = series.flatMap(([, points]) => points);
  const values = all.map(([, value]) => value).filter((value) => value !== null);
  if (!values.length) return null;
  let low = Math.min(...values), high = Math.max(...values);
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
  const steps = all.map(([step]) => step);
  const first = Math.min(...steps), end = Math.max(...steps, first + 1);
  const x = (step) => LEFT + (width - LEFT - RIGHT) * (step - first) / (end - first);
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low);
  const label = `${metric} over the steps: ${series.map(([name, points]) => `${name} is ${newest(points)}`).join(", ")}`;
  return chart(width, HEIGHT, label,
    ...ticks(low, high, 5).flatMap((tick) => [
      svg("line", {class: "axis", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick)}),
      svg("text", {class: "faint", x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end"}, short(tick))]),
    ...ticks(first, end, width / 90).filter(Number.isInteger).map((tick) =>
      svg("text", {class: "faint", x: x(tick), y: HEIGHT - BOTTOM + 16, "text-anchor": x(tick) > width - 30 ? "end" : "middle"}, tick)),
    svg("text", {class: "faint", x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle"}, "step of this process"),
    ...series.flatMap(([, points, kind]) => {
      const finite = points.filter(([, value]) => value !== null);
      // Few points have circles: one alone is no line.
      const dots = finite.length <= MAX_DOTS ? finite : finite.slice(-1);
      return [svg("path", {class: `curve ${kind}`, d: path(points, x, y)}),
        ...dots.map(([step, value]) => svg("circle", {class: `point ${kind}`, cx: x(step), cy: y(value), r: 3}))];
    }));
}

function newest(points) {
  const value = points.length ? points[points.length - 1][1] : null;
  return value === null ? "no finite number" : short(value);
}

function valuesTable(curves, metrics, chosen) {
  const cell = (name) => html("td", {class: "number"}, Object.hasOwn(curves, name) ? newest(curves[name]) : "–");
  return html("table", {},
    html("thead", {}, html("tr", {}, html("th", {scope: "col"}, "Newest values"),
      html("th", {scope: "col", class: "number"}, "Training"), html("th", {scope: "col", class: "number"}, "Validation"))),
    html("tbody", {}, ...metrics.map((metric) => html("tr", {class: metric === chosen ? "chosen" : null},
      html("th", {scope: "row", class: "name"}, metric), cell(metric), cell(VALIDATION + metric)))));
}

// Fills the chooser, and returns the chosen metric. It is left as it is while its names are the same:
// a user may have opened it.
function choose(select, metrics) {
  const names = JSON.stringify(metrics);
  if (select.dataset.names !== names) {
    const before = select.value;
    select.replaceChildren(...metrics.map((metric) => html("option", {value: metric}, metric)));
    select.dataset.names = names;
    if (metrics.includes(before)) select.value = before;
    else if (metrics.includes("loss")) select.value = "loss";
  }
  return metrics[select.selectedIndex];
}

// Draws the chosen metric of a job.
export function drawCurves(job, select, place) {
  const curves = job.fit?.curves ?? {}, metrics = metricsOf(curves);
  select.parentElement.hidden = !metrics.length;
  if (!metrics.length) {
    place.replaceChildren(html("p", {class: "faint"}, "No losses and metrics yet: they come from fit, on tasks that train."));
    return;
  }
  const metric = choose(select, metrics), series = seriesOf(curves, metric);
  const drawn = drawing(series, metric, widthOf(place));
  const legend = html("ul", {class: "legend"}, ...series.map(([name, , kind]) => html("li", {}, html("span", {class: `key ${kind}`}), name)));
  place.replaceChildren(legend, ...(drawn ? [drawn] : [html("p", {class: "faint"}, "No finite value yet.")]),
    valuesTable(curves, metrics, metric),
    html("p", {class: "faint"}, `Of ${job.fit.task}, as fit shows them: in training the mean since the epoch began.`));
}
