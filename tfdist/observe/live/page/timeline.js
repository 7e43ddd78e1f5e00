// The last seconds of each task: bars for steps, collectives and requests.

import {ticks} from "./axis.js";
import {bytes, chart, seconds, svg, widthOf} from "./dom.js";

const RIGHT = 8, ROW = 9, GAP = 10, AXIS = 24;
const NARROW = 600; // of the page; the names of tasks then have less space
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

function isShown(event, window) {
  return event.ended === null || event.ended < window;
}

function age(seconds) {
  return seconds < 1 ? `−${Number((1000 * seconds).toPrecision(3))} ms` : `−${Number(seconds.toPrecision(3))} s`;
}

// Returns the drawing for a place on the page, and how many tasks it leaves out.
export function timeline(job, place) {
  const width = widthOf(place), left = width < NARROW ? 64 : 96, letters = Math.floor((left - 8) / 6.6);
  const names = Object.keys(job.events).filter((name) => job.events[name].some((event) => isShown(event, job.window)));
  const shown = names.slice(0, MAX_TASKS);
  const x = (age) => left + (width - left - RIGHT) * (1 - Math.min(Math.max(age, 0), job.window) / job.window);
  const parts = [];
  let y = AXIS;
  for (const name of shown) {
    const top = y;
    const bars = [];
    for (const kind of KINDS) {
      const events = job.events[name].filter((event) => event.kind === kind && isShown(event, job.window));
      if (!events.length) continue;
      const places = rows(events);
      events.forEach((event, i) => bars.push(bar(event, y + 1 + ROW * places[i], x)));
      y += ROW * (Math.max(...places) + 1) + 3;
    }
    parts.push(svg("rect", {class: "lane", x: left, y: top - 2, width: width - left - RIGHT, height: y - top + 2}));
    parts.push(svg("text", {x: left - 8, y: (top + y) / 2 + 4, "text-anchor": "end"}, name.length > letters ? `${name.slice(0, letters - 1)}…` : name));
    parts.push(...bars);
    y += GAP;
  }
  const marks = ticks(0, job.window, width / 110).flatMap((at) => [
    svg("line", {class: "axis", x1: x(at), x2: x(at), y1: AXIS - 6, y2: Math.max(y - GAP, AXIS)}),
    svg("text", {class: "faint", x: x(at), y: AXIS - 10, "text-anchor": at ? "middle" : "end"}, at ? age(at) : job.end ? "end" : "now")]);
  const label = `The last ${seconds(job.window)} of ${shown.length} tasks; a bar's title describes it`;
  return {drawn: shown.length ? chart(width, y, label, ...parts, ...marks) : null, hidden: names.length - shown.length};
}
