// Makes the cells of a lesson editable and runnable. Until one runs, the page is what Sphinx has built.
import { keepForOffline } from "./offline.js";

const HERE = new URL(".", import.meta.url);
const settings = JSON.parse(document.getElementById("live").textContent);
const root = document.documentElement;
const KEY = `tinyprop/${settings.lesson}`;
const PARTS = ["python", "lessons"]; // of what the site keeps for readers without a network
const LONG = 5; // seconds of a cell from which on the page says how long it takes
const OLD = "If the site is newer than this page, reload it: what you have typed is kept.";

const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
const button = (text, click) => make("button", { type: "button", textContent: text, onclick: click });

// -- what is kept: changed cells (`earlier`, those that an older edition of the lesson had), guesses, what came of each exercise, and
// how long cells took here

const kept = { cells: {}, earlier: {}, guesses: {}, answers: {}, seconds: {}, ...stored() };
let lasting = true; // whether the browser has kept the last change

function stored() {
  try {
    return JSON.parse(localStorage.getItem(KEY));
  } catch {
    return null; // storage is forbidden
  }
}

/** Changes what is kept, after another tab may have done so. */
function keep(change) {
  if (lasting) Object.assign(kept, stored());
  change();
  try {
    localStorage.setItem(KEY, JSON.stringify(kept));
    lasting = true;
  } catch {
    lasting = false; // it is forbidden, or full
  }
  notKept.hidden = lasting;
}

// Files that a cell has written for the lessons that follow: exercise 1.5 has the first.
const FILE = "tinyprop-file/";
function files() {
  try {
    return Object.entries(localStorage).filter(([key]) => key.startsWith(FILE)).map(([key, content]) => [key.slice(FILE.length), content]);
  } catch {
    return [];
  }
}
function keepFile(name, content) {
  try {
    localStorage.setItem(FILE + name, content);
  } catch {
    // it lasts as long as this page
  }
}

// -- the page's own bar

const status = make("span", { className: "live-status" });
status.setAttribute("role", "status");
const runAll = button("Run all", () => run(cells.length - 1, true));
const stop = button("Stop", () => end("Stopped. Run starts Python again."));
stop.hidden = true;
const handIn = button("Hand in", save);
handIn.title = "Save your answers, guesses and changes as a file";
document.getElementById("live-bar").prepend(runAll, stop, handIn);
const notKept = make("span", { className: "live-note", hidden: true, textContent: "This browser does not keep your changes: save them with Hand in." });
document.getElementById("live-bar").append(status, notKept);
const say = (text) => (status.textContent = text);
root.dataset.live = "idle";

// -- Python

let worker = null;
let waiting = []; // numbers of cells that will run
let current = null; // the cell that runs
let began = 0;

function start() {
  if (worker) return;
  worker = new Worker(new URL("worker.js", HERE), { type: "module" });
  worker.onmessage = ({ data }) => heard(data);
  worker.onerror = (event) => end(`Python could not start. ${event.message ?? OLD}`, "error");
  for (const [question, guess] of Object.entries(kept.guesses)) worker.postMessage({ question, guess });
  for (const [file, content] of files()) worker.postMessage({ file, content });
}

function end(text, state = "idle") {
  worker?.terminate();
  worker = null;
  current?.bar.classList.remove("running");
  current = null;
  waiting = [];
  for (const cell of cells) forget(cell);
  settle(state);
  say(text);
}

function settle(state) {
  stop.hidden = state !== "running";
  root.dataset.live = state;
}

function heard({ status: text, ready, broken, cell: number, kind, content, ...more }) {
  if (text) return say(`${text} …`);
  if (broken) return end(`Python could not start. ${broken}`, "error");
  if (ready) {
    say("");
    return void keepForOffline(PARTS);
  }
  const cell = cells[number];
  if (kind === "start") {
    current = cell;
    began = performance.now();
    cell.fresh = false; // the figures of the build stay until there is something new
    cell.bar.classList.add("running");
  } else if (kind === "end") {
    finished(cell, more.good);
  } else if (kind === "note") {
    noted(cell, content, more.what, more.outcome);
  } else {
    show(cell, kind, content);
  }
}

function finished(cell, good) {
  if (!cell.fresh && good) renew(cell);
  cell.bar.classList.remove("running");
  cell.ran = good ? cell.sent : null; // the reader may have changed it meanwhile
  const seconds = (performance.now() - began) / 1000;
  cell.note(good ? `${seconds.toFixed(1)} s` : "error");
  if (good && cell.sent === cell.original) {
    cell.seconds = seconds;
    keep(() => (kept.seconds[cell.number] = seconds));
  }
  cell.box.classList.toggle("stale", false);
  cell.box.dataset.ran = good ? "good" : "error";
  current = null;
  if (!good) waiting = [];
  next(good ? "idle" : "error");
}

function next(state = "idle") {
  if (current) return;
  if (!waiting.length) {
    settle(state);
    return say(state === "error" ? "A cell stopped with an error." : "");
  }
  const cell = cells[waiting.shift()];
  current = cell;
  settle("running");
  if (worker) say(`Running cell ${cell.number + 1} of ${cells.length}`);
  start();
  cell.sent = text(cell);
  worker.postMessage({ cell: cell.number, source: cell.sent });
}

// Run a cell, and before it all above that have not run as they are now; or all of them anew.
function run(number, anew = false) {
  start();
  for (const cell of cells.slice(0, number + 1)) {
    const old = cell.ran === text(cell) && cell.number !== number;
    if ((anew || !old) && !waiting.includes(cell.number) && current !== cell) waiting.push(cell.number);
  }
  waiting.sort((a, b) => a - b);
  next();
}

setInterval(() => {
  if (!current || root.dataset.live !== "running") return;
  const seconds = Math.round((performance.now() - began) / 1000);
  if (current.bar.classList.contains("running")) current.note(`running, ${seconds} s${estimate(current) ? ` of about ${estimate(current)}` : ""}`);
}, 500);

// -- the cells

const estimate = (cell) => (cell.text === cell.original ? Math.round(cell.seconds) : 0);
const text = (cell) => cell.view ? cell.view.state.doc.toString() : cell.text;

function forget(cell) {
  cell.ran = null;
  delete cell.box.dataset.ran;
  cell.note("");
}

function stale(from) {
  for (const cell of cells.slice(from)) {
    if (cell.ran === null) continue;
    cell.ran = null;
    cell.box.classList.add("stale");
    cell.note(cell.number === from ? "changed" : "a cell above has changed");
  }
}

function changed(cell, now) {
  cell.text = now;
  keep(() => {
    if (now === cell.original) delete kept.cells[cell.number];
    else kept.cells[cell.number] = { from: cell.original, to: now };
  });
  dress(cell);
  stale(cell.number);
}

// What its bar offers for the text that a cell has now.
function dress(cell) {
  cell.reset.hidden = cell.text === cell.original;
  cell.shorter.hidden = short(cell.text) === cell.text;
  cell.back.hidden = [undefined, cell.text].includes(kept.earlier[cell.number]);
  if (cell.ran === null) cell.note("");
}

function write(cell, now) {
  if (cell.view) cell.view.dispatch({ changes: { from: 0, to: cell.view.state.doc.length, insert: now } });
  else changed(cell, now);
}

// A line `STEPS = 100  # short: 30` has a short form.
const SHORT = /^(\s*\w+ = )(.+?)(\s+# short: )(.+)$/gm;
const short = (source) => source.replace(SHORT, "$1$4$3$4");

function renew(cell) {
  cell.output?.remove();
  cell.output = make("div", { className: "cell_output docutils container live-output" });
  cell.output.setAttribute("aria-label", `Output of cell ${cell.number + 1}`);
  cell.output.setAttribute("role", "group");
  cell.output.hidden = cell.lock !== null;
  cell.box.append(cell.output);
  cell.fresh = true;
}

function show(cell, kind, content) {
  if (kind === "threads") {
    cell.fresh = true; // what the build shows stays
    cell.box.querySelector(".live-threads")?.remove();
    cell.box.append(make("p", { className: "live-remark live-threads", textContent: content }));
    return;
  }
  if (!cell.fresh) renew(cell);
  if (kind === "figure") {
    cell.output.insertAdjacentHTML("beforeend", content); // from docs/live/figure.py
  } else if (kind === "error") {
    cell.output.append(make("pre", { className: "live-error", textContent: content, tabIndex: 0 }));
  } else {
    let last = cell.output.lastElementChild;
    if (!last?.matches("pre.live-text")) cell.output.append((last = make("pre", { className: "live-text", tabIndex: 0 })));
    // a carriage return begins the line anew, as a terminal does
    last.textContent = (last.textContent + content).replace(/^.*\r(?!\n)/gm, "");
  }
}

function noted(cell, name, what, outcome) {
  if (what === "keep") return keepFile(name, outcome);
  keep(() => {
    const record = (kept.answers[name] ??= { tries: 0 });
    if (what === "hint") record.hints = (record.hints ?? 0) + 1;
    else if (what === "check") checked(record, cell, outcome);
  });
}

function checked(record, cell, outcome) {
  if (record.source !== text(cell)) record.tries += 1;
  Object.assign(record, { right: !outcome, says: outcome ?? "", source: text(cell) });
}

// -- predictions: the answer is in a file of its own, which is fetched when there is a guess

function lock(cell) {
  const { question, answer } = settings.locks[cell.number];
  if (kept.guesses[question] !== undefined) return void unlock(cell, answer);
  cell.lock = question;
  const input = make("input", { type: "number", step: "any", required: true, name: "guess" });
  const form = make("form", { className: "live-guess" }, make("label", {}, `Your guess: ${question} `, input), make("button", { textContent: "Guess" }));
  form.onsubmit = async (event) => {
    event.preventDefault();
    const guess = Number(input.value);
    keep(() => (kept.guesses[question] = guess));
    worker?.postMessage({ question, guess });
    form.remove();
    const ran = cell.ran !== null;
    cell.lock = null;
    if (ran) run(cell.number);
    else await unlock(cell, answer);
  };
  cell.box.querySelector(".locked")?.remove();
  cell.box.append(form);
}

async function unlock(cell, address) {
  const placeholder = cell.box.querySelector(".locked");
  const page = await fetch(address).catch(() => null);
  if (!page?.ok) return void cell.note("run this cell to see the answer");
  const output = new DOMParser().parseFromString(await page.text(), "text/html").querySelector(".cell_output");
  placeholder?.remove();
  if (cell.fresh !== undefined && cell.output?.classList.contains("live-output")) return; // it has run meanwhile
  if (output) cell.box.append((cell.output = document.adoptNode(output)));
}

// -- files

function save() {
  // cells as in a notebook: tutorials/grade.py runs them again, as nothing that a browser says can be trusted
  const sources = cells.map((cell) => ({ cell_type: "code", source: text(cell) }));
  const { guesses, answers } = kept;
  const content = { format: 1, lesson: settings.lesson, tinyprop: settings.version, saved: new Date().toISOString(), guesses, answers, cells: sources };
  const address = URL.createObjectURL(new Blob([JSON.stringify(content, null, 1)], { type: "application/json" }));
  make("a", { href: address, download: `${settings.lesson}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// -- setting up

let mounted = null;
// CodeMirror comes with the first sign of interest: the page itself stays small.
function mount() {
  mounted ??= import("./editor.js").then(({ editor }) => cells.forEach((cell) => edit(cell, editor)), () => {
    mounted = null;
    say(`The editor could not be loaded. ${OLD}`);
  });
  return mounted;
}

function edit(cell, editor) {
  const place = make("div", { className: "live-editor" });
  cell.input.append(place);
  cell.view = editor(place, cell.text, `Code of cell ${cell.number + 1}`, () => run(cell.number), (now) => changed(cell, now));
  cell.shown.hidden = true;
}

const cells = [...document.querySelectorAll("article div.cell")].map((box, number) => {
  const input = box.querySelector(".cell_input");
  const shown = input.querySelector("div[class*=highlight-]");
  const original = shown.querySelector("pre").textContent.replace(/\n$/, "");
  const state = make("span", { className: "live-note" });
  const cell = { number, box, input, shown, original, text: original, ran: null, lock: null, output: box.querySelector(".cell_output") };
  // as long as it took here before, or as the lesson says
  cell.seconds = kept.seconds[number] ?? Number(box.className.match(/tag_takes-(\d+)s/)?.[1] ?? 0);
  cell.note = (words) => (state.textContent = words || (estimate(cell) >= LONG ? `takes about ${estimate(cell)} s` : ""));
  cell.reset = button("Reset", () => write(cell, original));
  cell.shorter = button("Short form", () => write(cell, short(text(cell))));
  cell.back = button("My earlier version", () => write(cell, kept.earlier[number]));
  cell.back.title = "What you had here before this cell got a new text";
  cell.bar = make("div", { className: "live-cell-bar" }, button("Run", () => run(number)), cell.reset, cell.shorter, cell.back, state);
  (input.closest("details") ?? input).after(cell.bar); // below folded code it stays in sight
  shown.addEventListener("pointerdown", async (event) => {
    if (event.target.closest("button")) return;
    const { clientX: x, clientY: y } = event;
    await mount();
    if (!cell.view) return;
    const place = cell.view.posAtCoords({ x, y });
    cell.view.focus();
    if (place !== null) cell.view.dispatch({ selection: { anchor: place } });
  });
  return cell;
});

// In a new edition of the lesson, a cell may have moved, or its text may be new: then the reader's is offered, but does not win.
const homeless = Object.entries(kept.cells).filter(([number, { from }]) => cells[number]?.original !== from);
if (homeless.length) keep(() => {
  for (const [number] of homeless) delete kept.cells[number];
  for (const [number, change] of homeless) {
    const cell = cells.find(({ original }) => original === change.from);
    if (cell) kept.cells[cell.number] ??= change;
    else kept.earlier[Math.min(number, cells.length - 1)] = change.to;
  }
});
if (Object.keys(kept.cells).length) mount();
for (const cell of cells) {
  cell.text = kept.cells[cell.number]?.to ?? cell.original;
  dress(cell);
  if (settings.locks[cell.number]) lock(cell);
}
addEventListener("pointerover", (event) => event.target.closest?.("div.cell, .live-bar") && mount(), { passive: true });
addEventListener("focusin", (event) => event.target.closest?.("div.cell, .live-bar") && mount());
