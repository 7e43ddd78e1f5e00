// The traffic between tasks: they stand in a circle, with an arrow from each sender to each receiver.

import {bytes, chart, html, svg, widthOf} from "./dom.js";

const HEIGHT = 300, MAX_RADIUS = 112, NODE = 9;
const LABEL = 84; // the width of a task's name beside the circle
const MAX_LABELS = 40, MAX_PAIRS = 2000;

// Returns [from, to, bytes per second] for each pair, the largest first. A pair is known from both of
// its ends if both answer: the sender's answer counts.
export function edges(tasks) {
  const found = new Map();
  const note = (from, to, rate, isSender) => {
    const key = JSON.stringify([from, to]);
    if (rate > 0 && (isSender || !found.has(key))) found.set(key, [from, to, rate]);
  };
  for (const task of tasks) {
    for (const [peer, [sent, received]] of Object.entries(task.traffic)) {
      note(task.name, peer, sent, true);
      note(peer, task.name, received, false);
    }
  }
  return [...found.values()].sort((a, b) => b[2] - a[2]);
}

function places(names, width, radius) {
  return new Map(names.map((name, i) => {
    const angle = 2 * Math.PI * i / names.length - Math.PI / 2;
    return [name, {x: width / 2 + radius * Math.cos(angle), y: HEIGHT / 2 + radius * Math.sin(angle), angle}];
  }));
}

// An arc that is bent to its right, so that the two directions of a pair lie apart.
function arrow(from, to, rate, most, ofServer, title) {
  const dx = to.x - from.x, dy = to.y - from.y, length = Math.hypot(dx, dy);
  const bend = 0.14;
  const mx = (from.x + to.x) / 2 - bend * dy, my = (from.y + to.y) / 2 + bend * dx;
  // It ends at the circle of the node, in the direction of the curve there.
  const ex = to.x - mx, ey = to.y - my, e = Math.hypot(ex, ey);
  const tip = {x: to.x - ex / e * (NODE + 3), y: to.y - ey / e * (NODE + 3)};
  const width = 1 + 4 * Math.sqrt(rate / most), head = 4 + width;
  const base = {x: tip.x - ex / e * head, y: tip.y - ey / e * head};
  const side = {x: -ey / e * head / 1.8, y: ex / e * head / 1.8};
  const kind = ofServer ? " of-server" : "";
  return length === 0 ? svg("g") : svg("g", {}, svg("title", {}, title),
    svg("path", {class: `edge${kind}`, "stroke-width": width, d: `M${from.x} ${from.y}Q${mx} ${my} ${base.x} ${base.y}`}),
    svg("path", {class: `arrow${kind}`, d: `M${tip.x} ${tip.y}L${base.x + side.x} ${base.y + side.y}L${base.x - side.x} ${base.y - side.y}Z`}));
}

// Returns the drawing for a place on the page, and a table of the same.
export function graph(job, place) {
  const width = widthOf(place), radius = Math.min(MAX_RADIUS, width / 2 - LABEL);
  const all = edges(job.tasks), pairs = all.slice(0, MAX_PAIRS);
  const names = [...new Set([...job.tasks.map((task) => task.name), ...pairs.flatMap(([from, to]) => [from, to])])];
  const at = places(names, width, radius), most = pairs.length ? pairs[0][2] : 1;
  const silent = new Set(job.tasks.filter((task) => task.problem && job.end === null).map((task) => task.name));
  const text = ([from, to, rate]) => `${from} to ${to}: ${bytes(rate)}/s`;
  const drawn = chart(width, HEIGHT, `${names.length} tasks, ${all.length} directions of traffic; the table below lists the largest ${pairs.length}`,
    ...pairs.map((pair) => arrow(at.get(pair[0]), at.get(pair[1]), pair[2], most, pair[0].startsWith("ps ") || pair[1].startsWith("ps "), text(pair))),
    ...names.map((name) => {
      const {x, y} = at.get(name);
      const kind = name === job.straggler ? " straggler" : silent.has(name) ? " silent" : "";
      return svg("circle", {class: `node${kind}`, cx: x, cy: y, r: NODE}, svg("title", {}, name));
    }),
    ...(names.length > MAX_LABELS ? [] : names.map((name) => {
      const {angle} = at.get(name), cos = Math.cos(angle);
      const anchor = cos > 0.3 ? "start" : cos < -0.3 ? "end" : "middle";
      return svg("text", {
        x: width / 2 + (radius + NODE + 8) * cos,
        y: HEIGHT / 2 + (radius + NODE + 12) * Math.sin(angle) + 4,
        "text-anchor": anchor,
      }, name.length > 24 ? `${name.slice(0, 23)}…` : name);
    })));
  const table = html("table", {},
    html("thead", {}, html("tr", {}, html("th", {scope: "col"}, "From"), html("th", {scope: "col"}, "To"), html("th", {scope: "col", class: "number"}, "Bytes/s"))),
    html("tbody", {}, ...pairs.map(([from, to, rate]) => html("tr", {}, html("td", {}, from), html("td", {}, to), html("td", {class: "number"}, bytes(rate))))));
  return [drawn, table];
}
