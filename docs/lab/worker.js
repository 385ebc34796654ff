// Runs jobs of Python beside the page. There is at most one of each kind: a newer one takes the place of an older one. Between any two
// answers there is time for messages: {kind, id, setting} starts a job, {kind, note} tells it something, {kind, held} lets it wait or go
// on, and {kind, stop} ends it. A job that has finished waits, too: it still answers to notes.
import { boot } from "./boot.js";

const jobs = new Map(); // by kind
let python, running = false;

const ready = boot((status) => postMessage({ status })).then(
  (module) => {
    python = module;
    postMessage({ ready: true });
  },
  (error) => postMessage({ broken: String(error) }),
);

onmessage = ({ data }) => {
  const { kind, id, setting, note, held = false, stop } = data, known = jobs.get(kind);
  if (setting || stop) end(kind);
  if (stop) postMessage({ kind, id: known?.id, stopped: true });
  if (setting) jobs.set(kind, { kind, id, setting: JSON.stringify(setting), held, note: undefined, steps: null });
  else if (known && note) known.note = JSON.stringify(note);
  else if (known) known.held = held;
  if (!running) run();
};

function end(kind) {
  jobs.get(kind)?.steps?.destroy();
  jobs.delete(kind);
}

async function run() {
  running = true;
  await ready;
  for (;;) {
    const active = [...jobs.values()].filter((job) => !job.held || job.note);
    if (!python || !active.length) break;
    active.forEach(step);
    await breath();
  }
  running = false;
}

/** Lets messages in: a channel is not slowed down as timers are. */
const channel = new MessageChannel();
const breath = () => new Promise((done) => {
  channel.port1.onmessage = done;
  channel.port2.postMessage(null);
});

function step(job) {
  const { kind, id } = job;
  let answer;
  try {
    job.steps ??= python.start(kind, job.setting);
    answer = JSON.parse(python.step(job.steps, job.note).replace(/-?\b(NaN|Infinity)\b/g, "null"));
  } catch (error) {
    answer = ["error", { text: error.message.trim().split("\n").pop() }];
  }
  job.note = undefined;
  if (answer) postMessage({ kind, id, name: answer[0], numbers: answer[1] });
  else postMessage({ kind, id, done: true });
  if (!answer || answer[0] === "error") end(kind);
  else if (answer[0] === "finished") job.held = true;
}
