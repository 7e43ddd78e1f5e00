// The last seconds of each task: bars for steps, collectives and requests.

import {bytes, chart, seconds, svg} from "./dom.js";

const WIDTH = 960, LEFT = 96, RIGHT = 8, ROW = 9, GAP = 10, AXIS = 24;
const KINDS = ["span", "collective", "request"];
const MAX_TASKS = 16, MAX_ROWS = 4;

// Puts bars into rows in which they do not overlap; the last row takes what is left.
export function rows(events, most = MAX_ROWS) {
  const ends = [];
  return events.map((event) => {
    const begin = -event.submitted, end = event.ended === null ? 0 : -event.ended;
    let row = ends.findIndex((at) => at <= begin);
    if (row < 0) row = Math.min(ends.length, most - 1);
    ends[row] = Math.max(ends[row] ?? -Infinity, end);
    return row;
  });
}

function describe(event) {
  const end = event.ended ?? 0, waited = event.submitted - (event.started ?? end);
  const parts = [event.operation, event.name, event.detail].filter((text) => text).join(" ");
  const size = event.bytes ? `, ${bytes(event.bytes)}` : "";
  const state = event.failed ? ", failed" : event.ended === null ? ", not over yet" : "";
  const waiting = event.kind === "span" ? "" : `, of which ${seconds(Math.max(0, waited))} before the first byte`;
  return `${parts}${size}: ${seconds(Math.max(0, event.submitted - end))}${waiting}${state}`;
}

function bar(event, y, x) {
  const kind = event.failed ? "failed" : KINDS.includes(event.kind) ? event.kind : "span";
  const begin = x(event.submitted), end = x(event.ended ?? 0);
  const middle = event.kind === "span" ? begin : Math.min(end, x(event.started ?? (event.ended ?? 0)));
  // Half a unit less, so that steps that follow each other lie apart.
  const rect = (from, to, kinds) => svg("rect", {class: kinds, x: from, y, width: Math.max(0.8, to - from - 0.5), height: ROW - 2, rx: 1});
  const parts = middle - begin > 0.3 ? [rect(begin, middle, `${kind} waiting`)] : [];
  // An event that only waits so far has no second part.
  if (event.kind === "span" || event.started !== null || event.ended !== null) parts.push(rect(middle, end, kind));
  return svg("g", {}, svg("title", {}, describe(event)), ...parts);
}

// Returns the drawing, and how many tasks it leaves out.
export function timeline(job) {
  const names = Object.keys(job.events).filter((name) => job.events[name].length);
  const shown = names.slice(0, MAX_TASKS);
  const x = (age) => LEFT + (WIDTH - LEFT - RIGHT) * (1 - Math.min(Math.max(age, 0), job.window) / job.window);
  const parts = [];
  let y = AXIS;
  for (const name of shown) {
    const top = y;
    const bars = [];
    for (const kind of KINDS) {
      const events = job.events[name].filter((event) => event.kind === kind);
      if (!events.length) continue;
      const places = rows(events);
      events.forEach((event, i) => bars.push(bar(event, y + 1 + ROW * places[i], x)));
      y += ROW * (Math.max(...places) + 1) + 3;
    }
    parts.push(svg("rect", {class: "lane", x: LEFT, y: top - 2, width: WIDTH - LEFT - RIGHT, height: y - top + 2}));
    parts.push(svg("text", {x: LEFT - 8, y: (top + y) / 2 + 4, "text-anchor": "end"}, name.length > 13 ? `${name.slice(0, 12)}…` : name));
    parts.push(...bars);
    y += GAP;
  }
  const marks = [];
  for (let age = 0; age <= job.window; age += 1) {
    marks.push(svg("line", {class: "axis", x1: x(age), x2: x(age), y1: AXIS - 6, y2: Math.max(y - GAP, AXIS)}));
    if (age % 2 === 0) {
      marks.push(svg("text", {class: "faint", x: x(age), y: AXIS - 10, "text-anchor": age ? "middle" : "end"}, age ? `−${age} s` : "now"));
    }
  }
  const label = `The last ${job.window} seconds of ${shown.length} tasks; a bar's title describes it`;
  return {drawn: shown.length ? chart(WIDTH, y, label, ...parts, ...marks) : null, hidden: names.length - shown.length};
}
