// Asks for the job every second, and draws it.

import {drawCurves} from "./curves.js";
import {html, percent} from "./dom.js";
import {graph} from "./graph.js";
import {queueItem, summary, taskHead, taskRow} from "./tasks.js";
import {timeline} from "./timeline.js";

const PERIOD = 1000; // ms between two looks
const TIMEOUT = 15000; // ms
const byId = (id) => document.getElementById(id);

let newest = null; // the job, as it was seen last

// The token is in a cookie from now on: it need not stay in the address, or on a picture of it.
if (location.search) history.replaceState(null, "", "/");

function draw(job) {
  byId("title").textContent = [job.title, ...job.scripts].join(" · ");
  const late = byId("late");
  late.hidden = job.straggler === null;
  late.textContent = job.straggler === null ? "" :
    `${job.straggler} is late: the others wait for it, ${percent(job.waited_for[job.straggler])} of a task's time in all.`;
  byId("summary").replaceChildren(...summary(job));
  byId("progress").hidden = job.fit === null;
  byId("progress").value = job.fit?.done ?? 0;
  byId("tasks-head").replaceChildren(...taskHead());
  byId("tasks").replaceChildren(...job.tasks.map((task) => taskRow(task, job)));
  byId("queues-section").hidden = !job.queues.length;
  byId("queues").replaceChildren(...job.queues.map(queueItem));
  drawGraph(job);
  drawCurves(job, byId("metric"), byId("curves"));
  const {drawn, hidden} = timeline(job, byId("timeline"));
  const notes = drawn === null ? ["No task has told of anything here."] : hidden ? [`${hidden} more tasks are not drawn.`] : [];
  byId("timeline").replaceChildren(...(drawn ? [drawn] : []), ...notes.map((note) => html("p", {class: "faint"}, note)));
}

function drawGraph(job) {
  // A page that was opened after the job knows no rates.
  byId("graph-section").hidden = job.end !== null && job.tasks.every((task) => !Object.keys(task.traffic).length);
  if (byId("graph-section").hidden) return;
  const [drawn, table] = graph(job, byId("graph"));
  const wasOpen = byId("graph").querySelector("details")?.open ?? false;
  byId("graph").replaceChildren(drawn, html("details", {open: wasOpen ? "" : null}, html("summary", {}, "As a table"), table));
}

function say(text, isProblem) {
  const status = byId("status");
  // A screen reader speaks on a change: not every second.
  if (status.textContent !== text) status.textContent = text;
  status.classList.toggle("problem", isProblem);
}

// Returns a sentence on the end of a job.
function ending(end) {
  const how = end.code === null ? "its launcher was killed" : `exit code ${end.code}`;
  const when = end.at === null ? "" : `, at ${new Date(1000 * end.at).toLocaleTimeString()}`;
  return `The job is over: ${how}${when}. This is its last state.`;
}

function sayState(job) {
  const answers = job.tasks.filter((task) => !task.problem).length;
  if (job.end !== null) say(ending(job.end), job.end.code !== 0);
  else if (answers) say(job.seconds ? "Looks every second." : "Rates come with the second look.", false);
  else if (job.tasks.some((task) => task.pid !== null)) say("No task answers now: this is their last state.", true);
  else say("No task answers: the job has not begun.", true);
}

// Returns whether a further look may show something else.
async function look() {
  try {
    const answer = await fetch("/job.json", {signal: AbortSignal.timeout(TIMEOUT)});
    if (answer.status === 403) say("This page has expired: open the address that tfdist dashboard prints.", true);
    else if (!answer.ok) say(`tfdist dashboard answers ${answer.status}.`, true);
    else {
      newest = await answer.json();
      draw(newest);
      sayState(newest);
      return newest.end === null;
    }
  } catch (error) {
    say(error instanceof TypeError || error.name === "TimeoutError" ? "tfdist dashboard does not answer." : String(error), true);
  }
  return true;
}

async function run() {
  for (;;) {
    // A hidden page asks nothing.
    if (!document.hidden && !await look()) return;
    await new Promise((resolve) => setTimeout(resolve, PERIOD));
  }
}

// Another metric, or another width, is drawn at once, also of an ended job.
for (const [target, event] of [[byId("metric"), "change"], [window, "resize"]]) {
  target.addEventListener(event, () => newest && draw(newest));
}
run();
