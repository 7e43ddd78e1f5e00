// The summary, the table of tasks, and the queues of data tasks.

import {bytes, html, percent, rate, svg} from "./dom.js";

const BAR = 60;

function sum(tasks, read) {
  const known = tasks.map(read).filter((value) => value !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) : null;
}

function mean(tasks, read) {
  const known = tasks.map(read).filter((value) => value !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}

// Returns the numbers of the whole job.
export function summary(job) {
  const answering = job.tasks.filter((task) => !task.problem);
  const entries = [
    ["Tasks that answer", `${answering.length} of ${job.tasks.length}`],
    ["Steps/s, mean", rate(mean(answering, (task) => task.step_rate))],
    ["Rows/s, all", rate(sum(answering, (task) => task.row_rate))],
    ["Communication, mean", percent(mean(answering, (task) => task.communication))],
    ["Sent/s, all", bytes(sum(answering, (task) => task.sent))],
    ["Memory, all", bytes(sum(answering, (task) => task.memory))],
  ];
  return entries.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value)));
}

function share(value, kind, text) {
  if (value === null) return html("td", {}, "–");
  const bar = svg("svg", {width: BAR, height: 8, "aria-hidden": "true"},
    svg("rect", {class: "track", width: BAR, height: 8, rx: 2}),
    svg("rect", {class: kind, width: BAR * Math.min(1, value), height: 8, rx: 2}));
  return html("td", {}, html("div", {class: "share"}, bar, text));
}

// Returns a row of the table.
export function taskRow(task, straggler) {
  const name = html("th", {scope: "row"}, task.name, task.name === straggler ? " (late)" : "");
  if (task.problem) {
    return html("tr", {}, name, html("td", {class: "problem", colspan: 8}, task.problem), html("td", {class: "faint"}, task.address));
  }
  const [peer, waited] = Object.entries(task.waits).sort((a, b) => b[1] - a[1])[0] ?? [null, null];
  const restarts = task.restarts ? `, started again ${task.restarts} times` : "";
  return html("tr", {class: task.name === straggler ? "straggler" : null}, name,
    html("td", {class: "number"}, task.steps === null ? "–" : task.steps.toLocaleString("en")),
    html("td", {class: "number"}, rate(task.step_rate)),
    html("td", {class: "number"}, rate(task.row_rate)),
    share(task.communication, "communicates", percent(task.communication)),
    share(waited, "waits", waited === null || waited < 0.005 ? "0 %" : `${percent(waited)} for ${peer}`),
    html("td", {class: "number"}, bytes(task.sent)),
    html("td", {class: "number"}, bytes(task.received)),
    html("td", {class: "number"}, bytes(task.memory)),
    html("td", {class: "faint"}, `${task.host}, process ${task.pid}${restarts}`));
}

// Returns what is known of a queue.
export function queueItem(queue) {
  const total = queue.to_do + queue.pending + queue.done + queue.parked;
  const records = queue.record_rate === null ? "" : `; ${rate(queue.record_rate)} records/s`;
  const text = `${queue.name}: ${queue.done} of ${total} done, ${queue.pending} pending, ${queue.parked} parked${records}`;
  return html("li", {}, text, html("progress", {max: total || 1, value: queue.done, "aria-label": text}));
}
