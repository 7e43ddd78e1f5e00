// The summary, the table of tasks, and the queues of data tasks.

import {bytes, duration, html, percent, rate, svg} from "./dom.js";

const BAR = 60;
const COLUMNS = ["Task", "Steps", "Steps/s", "Rows/s", "CPU", "Memory", "Communicates", "Waits most", "Sent/s", "Received/s", "State"];
const NUMBERS = new Set(["Steps", "Steps/s", "Rows/s", "CPU", "Memory", "Sent/s", "Received/s"]);

function known(tasks, read) {
  return tasks.map(read).filter((value) => value !== null);
}

function sum(tasks, read) {
  const values = known(tasks, read);
  return values.length ? values.reduce((a, b) => a + b, 0) : null;
}

function mean(tasks, read) {
  const values = known(tasks, read);
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

function timeLeft(job) {
  if (job.fit.has_ended) return "fit has ended";
  return job.end !== null ? "–" : duration(job.fit.remaining);
}

// Returns the numbers of the whole job.
export function summary(job) {
  const answering = job.tasks.filter((task) => !task.problem);
  const fit = job.fit === null ? [] : [
    ["Epoch", `${job.fit.epoch} of ${job.fit.epochs}`],
    ...(job.fit.has_ended ? [] : [["Batch", `${job.fit.batch.toLocaleString("en")} of ${job.fit.batches?.toLocaleString("en") ?? "?"}`]]),
    ["Time left", timeLeft(job)],
  ];
  const entries = [
    ...fit,
    job.end === null ? ["Tasks that answer", `${answering.length} of ${job.tasks.length}`] : ["Exit code", job.end.code ?? "killed"],
    ["Steps/s, mean", rate(mean(job.tasks, (task) => task.step_rate))],
    ["Rows/s, all", rate(sum(job.tasks, (task) => task.row_rate))],
    ["CPU, all", percent(sum(job.tasks, (task) => task.cpu))],
    ["Memory, all", bytes(sum(job.tasks, (task) => task.memory))],
    ["Communication, mean", percent(mean(job.tasks, (task) => task.communication))],
    ["Sent/s, all", bytes(sum(job.tasks, (task) => task.sent))],
  ];
  // Of an ended job only the total numbers may be known.
  const shown = job.end === null ? entries : entries.filter(([, value]) => value !== "–");
  return shown.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value)));
}

function share(value, kind, text) {
  if (value === null) return "–";
  const bar = svg("svg", {width: BAR, height: 8, "aria-hidden": "true"},
    svg("rect", {class: "track", width: BAR, height: 8, rx: 2}),
    svg("rect", {class: kind, width: BAR * Math.min(1, value), height: 8, rx: 2}));
  return html("div", {class: "share"}, bar, text);
}

// Returns the heads of the columns.
export function taskHead() {
  return COLUMNS.map((name) => html("th", {scope: "col", class: NUMBERS.has(name) ? "number" : null}, name));
}

// Returns the state of a task in words, and whether it is a problem.
function stateOf(task, job) {
  const code = job.end !== null && Object.hasOwn(job.end.exits, task.name) ? job.end.exits[task.name] : null;
  if (code !== null) return [`exit code ${code}`, code !== 0];
  if (task.problem) return [task.pid === null ? `${task.problem} ${task.address && `(${task.address})`}` : task.problem, true];
  const restarts = task.restarts ? `, started again ${task.restarts} times` : "";
  return [`${task.host}, process ${task.pid}${restarts}`, false];
}

// Returns a row of the table. On a narrow page it is a list: each cell has the name of its column.
export function taskRow(task, job) {
  const isLate = task.name === job.straggler;
  const [state, isProblem] = stateOf(task, job);
  const [peer, waited] = Object.entries(task.waits).sort((a, b) => b[1] - a[1])[0] ?? [null, null];
  const cells = {
    "Steps": task.steps === null ? "–" : task.steps.toLocaleString("en"),
    "Steps/s": rate(task.step_rate),
    "Rows/s": rate(task.row_rate),
    "CPU": percent(task.cpu),
    "Memory": bytes(task.memory),
    "Communicates": share(task.communication, "communicates", percent(task.communication)),
    "Waits most": share(waited, "waits", waited === null || waited < 0.005 ? "0 %" : `${percent(waited)} for ${peer}`),
    "Sent/s": bytes(task.sent),
    "Received/s": bytes(task.received),
    "State": state,
  };
  const ofName = (name) => NUMBERS.has(name) ? "number" : name === "State" ? (isProblem ? "problem" : "faint") : null;
  // A task of which nothing is known has its state alone.
  const shown = Object.keys(cells).filter((name) => task.pid !== null || name === "State");
  return html("tr", {class: isLate ? "straggler" : null},
    html("th", {scope: "row"}, task.name, isLate ? " (late)" : ""),
    ...shown.map((name) => html("td", {class: ofName(name), "data-label": name, colspan: shown.length === 1 ? COLUMNS.length - 1 : null}, cells[name])));
}

// Returns what is known of a queue.
export function queueItem(queue) {
  const total = queue.to_do + queue.pending + queue.done + queue.parked;
  const records = queue.record_rate === null ? "" : `; ${rate(queue.record_rate)} records/s`;
  const text = `${queue.name}: ${queue.done} of ${total} done, ${queue.pending} pending, ${queue.parked} parked${records}`;
  return html("li", {}, text, html("progress", {max: total || 1, value: queue.done, "aria-label": text}));
}
