// The loss of `fit` over its steps, of one task.

import {chart, svg} from "./dom.js";

const WIDTH = 460, HEIGHT = 300, LEFT = 56, RIGHT = 12, TOP = 12, BOTTOM = 36;

function short(value) {
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 1e5) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

// Returns up to about `count` round numbers between two.
export function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const first = Math.ceil(low / step) * step, found = [];
  // By their number: a step that is small beside a tick would not change it.
  for (let i = 0; i <= count + 1; i += 1) {
    const tick = first + i * step;
    if (tick <= high + step * 1e-9) found.push(tick);
  }
  return found;
}

// Returns the drawing; null without a loss. Points without a finite value are gaps.
export function lossCurve(losses) {
  const names = Object.keys(losses);
  // The same on all workers except their rows: the first one's loss.
  const name = names.find((one) => one.startsWith("chief")) ?? names.sort()[0];
  if (name === undefined) return null;
  const points = losses[name], finite = points.filter(([, value]) => value !== null);
  if (!finite.length) return {name, last: null, drawn: null};
  const values = finite.map(([, value]) => value);
  let low = Math.min(...values), high = Math.max(...values);
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
  const first = points[0][0], end = Math.max(points[points.length - 1][0], first + 1);
  const x = (step) => LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / (end - first);
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low);
  let line = "", begins = true;
  for (const [step, value] of points) {
    if (value !== null) line += `${begins ? "M" : "L"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    begins = value === null;
  }
  const last = points[points.length - 1];
  const tip = finite[finite.length - 1];
  const drawn = chart(WIDTH, HEIGHT, `Loss of ${name} from ${short(finite[0][1])} to ${last[1] === null ? "no finite number" : short(last[1])}`,
    ...ticks(low, high, 5).flatMap((tick) => [
      svg("line", {class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick)}),
      svg("text", {class: "faint", x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end"}, short(tick))]),
    ...ticks(first, end, 5).filter(Number.isInteger).map((tick) =>
      svg("text", {class: "faint", x: x(tick), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle"}, tick)),
    svg("text", {class: "faint", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle"}, "step of this process"),
    svg("path", {class: "loss", d: line}),
    svg("circle", {class: "point", cx: x(tip[0]), cy: y(tip[1]), r: 3.5}));
  return {name, last: last[1], drawn};
}

// Returns the sentence below the drawing.
export function lossText(curve) {
  if (curve === null) return "No loss yet: it comes from fit, on tasks that train.";
  const value = curve.last === null ? "not a finite number" : short(curve.last);
  return `${curve.name}: ${value} now. As fit shows it: the mean since the epoch began.`;
}
