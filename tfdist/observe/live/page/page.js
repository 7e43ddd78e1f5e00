// Asks for the job every second, and draws it.

import {html, percent} from "./dom.js";
import {graph} from "./graph.js";
import {lossCurve, lossText} from "./loss.js";
import {queueItem, summary, taskRow} from "./tasks.js";
import {timeline} from "./timeline.js";

const PERIOD = 1000; // ms between two looks
const TIMEOUT = 15000; // ms
const byId = (id) => document.getElementById(id);

// The token is in a cookie from now on: it need not stay in the address, or on a picture of it.
if (location.search) history.replaceState(null, "", "/");

function draw(job) {
  byId("title").textContent = [job.title, ...job.scripts].join(" · ");
  const late = byId("late");
  late.hidden = job.straggler === null;
  late.textContent = job.straggler === null ? "" :
    `${job.straggler} is late: the others wait for it, ${percent(job.waited_for[job.straggler])} of a task's time in all.`;
  byId("summary").replaceChildren(...summary(job));
  byId("tasks").replaceChildren(...job.tasks.map((task) => taskRow(task, job.straggler)));
  byId("queues-section").hidden = !job.queues.length;
  byId("queues").replaceChildren(...job.queues.map(queueItem));
  drawGraph(job);
  const curve = lossCurve(job.loss);
  byId("loss").replaceChildren(...(curve?.drawn ? [curve.drawn] : []), html("p", {class: "faint"}, lossText(curve)));
  const {drawn, hidden} = timeline(job);
  const notes = drawn === null ? ["No task has told of anything yet."] : hidden ? [`${hidden} more tasks are not drawn.`] : [];
  byId("timeline").replaceChildren(...(drawn ? [drawn] : []), ...notes.map((note) => html("p", {class: "faint"}, note)));
}

function drawGraph(job) {
  const [drawn, table] = graph(job);
  const wasOpen = byId("graph").querySelector("details")?.open ?? false;
  byId("graph").replaceChildren(drawn, html("details", {open: wasOpen ? "" : null}, html("summary", {}, "As a table"), table));
}

function say(text, isProblem) {
  const status = byId("status");
  // A screen reader speaks on a change: not every second.
  if (status.textContent !== text) status.textContent = text;
  status.classList.toggle("problem", isProblem);
}

async function look() {
  try {
    const answer = await fetch("/job.json", {signal: AbortSignal.timeout(TIMEOUT)});
    if (answer.status === 403) return say("This page has expired: open the address that tfdist dashboard prints.", true);
    if (!answer.ok) return say(`tfdist dashboard answers ${answer.status}.`, true);
    const job = await answer.json();
    const answers = job.tasks.filter((task) => !task.problem).length;
    // The last answers stay when the job has ended.
    if (answers || !byId("tasks").childElementCount) draw(job);
    if (!answers) say("No task answers: the job has not begun, or has ended.", true);
    else say(job.seconds ? "Looks every second." : "Rates come with the second look.", false);
  } catch (error) {
    say(error instanceof TypeError || error.name === "TimeoutError" ? "tfdist dashboard does not answer." : String(error), true);
  }
}

async function run() {
  for (;;) {
    // A hidden page asks nothing.
    if (!document.hidden) await look();
    await new Promise((resolve) => setTimeout(resolve, PERIOD));
  }
}

run();
