// The page: controls, what is asked, and what is drawn when. A theory is drawn for each event of a slider; networks come after a rest.
import { draw, placeOf } from "./figures.js";
import { number } from "./draw.js";
import { keepForOffline } from "./offline.js";
import { Python } from "./python.js";
import { questions } from "./questions.js";
import { OWN, callOf, completed, fromAddress, known, own, stackOf, starts, titleOf, toAddress } from "./setting.js";
import { trainer } from "./trainer.js";

const element = (id) => document.getElementById(id);
const PARTS = ["python", "laboratory"]; // of what the site keeps for readers without a network
const REST = 150; // milliseconds without a change, after which a network is computed
const { norms, activations, first } = known;
const course = await (await fetch(own("course.json"))).json();

let setting = fromAddress(location.hash);
let python = null;
let began = 0, theoryAfter = 0;
let moving = null; // the control that moves
let addressed = 0; // a timer
const asked = new Map(); // settings and promises, by the number of the request
let early = []; // answers of networks that came before theory
const view = { now: { id: 0, setting }, kept: null, ghost: null };

// -- controls

const OPTIONAL = ["gamma", "beta"];
const RANGES = ["gamma", "beta", "depth", "width", "batch", "layer", "networks"];

/** Puts the setting into the controls, which keep numbers within their ranges, and takes back what they make of it. */
function settle() {
  const begin = starts(setting);
  element("layer").min = setting.residual ? 0 : 1;
  element("layer").max = setting.depth;
  element("norm").value = setting.norm;
  element("activation").value = setting.activation;
  element("own").hidden = setting.activation !== OWN;
  if (element("formula").value !== setting.formula) element("formula").value = setting.formula;
  for (const name of RANGES) {
    const input = element(name), optional = OPTIONAL.includes(name);
    input.disabled = optional && !(name in begin);
    if (input.disabled) setting[name] = null;
    input.value = setting[name] ?? begin[name] ?? (name === "gamma" ? 1 : 0);
    if (setting[name] !== null) setting[name] = Number(input.value);
    told(name, input.disabled ? "none" : optional ? Number(setting[name] ?? begin[name]).toFixed(2) : input.value);
  }
  element("residual").checked = setting.residual;
  setting.seed = Math.max(0, Math.round(setting.seed));
  element("norm-note").textContent = norms[setting.norm].note;
  element("affine-note").textContent = "gamma" in begin ? "" : "This normaliser has no scale and no shift here.";
  element("affine-note").hidden = "gamma" in begin;
  if (!element("code").hidden) showProgram();
}

const told = (name, text) => (document.querySelector(`output[for="${name}"]`).textContent = text);

function change({ target, type }) {
  const { name, value, checked } = target;
  if (!(name in setting)) return;
  keepForOffline(PARTS);
  element("preset").value = "";
  element("preset-note").textContent = "";
  const wasLast = setting.layer === setting.depth;
  if (name === "norm" || name === "activation") setting.gamma = setting.beta = null; // to what the layers start with
  setting[name] = target.type === "checkbox" ? checked : target.type === "range" ? Number(value) : value;
  if (name === "depth" && wasLast) setting.layer = setting.depth;
  const isMoving = target.type === "range" || name === "formula";
  if (!isMoving || moving !== name) leaveGhost();
  moving = isMoving ? name : null;
  update(isMoving ? REST : 0);
}

/** Remembers the theory of now, which stays in the figures behind that of the next setting. */
function leaveGhost() {
  view.ghost = view.now.theory ? { ...view.now } : null;
}

function update(rest = 0) {
  settle();
  clearTimeout(addressed);
  addressed = setTimeout(() => history.replaceState(null, "", toAddress(setting)), rest); // browsers refuse it for each event of a slider
  return ask(rest);
}

/** Shows another setting, from a part of it; the promise is its theory. */
function go(part) {
  setting = completed(part);
  moving = null;
  leaveGhost();
  return update();
}

// -- Python

function ask(rest) {
  if (!python) return Promise.resolve(null);
  began = performance.now();
  const { layer, seed, networks } = setting;
  const id = python.ask({ stack: stackOf(setting), layer, seed, networks }, rest);
  return new Promise((resolve) => asked.set(id, { setting: { ...setting }, resolve }));
}

function heard({ from, kind, id, status, ready, broken, stopped, done, name, numbers }) {
  if (kind === "train") return training.heard({ done, name, numbers });
  if (broken) return say(broken, true);
  if (stopped) return;
  if (status) return from === "theory" && say(`${status} …`);
  if (ready) {
    began = performance.now();
    return;
  }
  if (name === "error") return wrong(id, numbers);
  if (kind === "theory") return done || theory(id, numbers);
  if (id > view.now.id) early.push({ id, done, name, numbers });
  else if (id === view.now.id) network({ done, name, numbers });
}

function theory(id, numbers) {
  if (id < view.now.id) return;
  theoryAfter = since();
  const request = asked.get(id);
  view.now = { ...view.now, id, setting: request.setting, theory: numbers };
  if (setting.gamma === null && !element("gamma").disabled) told("gamma", numbers.affine[0].toFixed(2));
  wellFormed("");
  show(["theory"]);
  for (const number of [...asked.keys()]) if (number <= id) {
    asked.get(number).resolve(number === id ? numbers : null);
    asked.delete(number);
  }
  for (const answer of early.filter((one) => one.id === id)) network(answer);
  early = early.filter((one) => one.id > id);
}

function network({ done, name, numbers }) {
  if (done) {
    say(`Theory after ${theoryAfter} ms, networks after ${since()} ms`);
    show(Object.keys(view.now).filter((part) => view.now[part]?.of === view.now.id), true);
    summarize();
    document.documentElement.dataset.answered = String(view.now.id);
    return;
  }
  view.now = { ...view.now, [name]: { ...numbers, of: view.now.id } };
  show([name]);
}

function wrong(id, { formula, text }) {
  if (id !== python.last) return;
  if (formula) wellFormed(formula);
  else say(text, true);
}

function wellFormed(text) {
  element("formula-note").textContent = text;
  element("formula").setAttribute("aria-invalid", String(text !== ""));
}

function say(text, isWrong = false) {
  element("status").textContent = text;
  element("status").classList.toggle("error", isWrong);
}

const since = () => Math.round(performance.now() - began);

// -- what is shown

const inSight = new Set(); // figures on the screen; the others wait for the end
const watch = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) isIntersecting ? inSight.add(target.id) : inSight.delete(target.id);
  if (view.now.theory) redraw();
});
for (const figure of document.querySelectorAll("#stage figure")) watch.observe(figure);

function show(names, tables = false) {
  draw(names, view, tables, tables ? null : inSight);
  const { now, kept, ghost } = view;
  element("ghost-key").hidden = !ghost;
  const several = now.band?.of === now.id ? now.band.networks : 0;
  element("band-key").hidden = !several;
  element("band-key").textContent = `lowest to highest of ${several} networks`;
  element("compared").hidden = element("kept-key").hidden = !kept;
  element("now-title").textContent = titleOf(now.setting);
  document.querySelector("#stage .grid").classList.toggle("beside", Boolean(kept));
}

/** Draws everything again. */
function redraw() {
  show(["theory", "network", "distribution", "correlation", "spectrum"].filter((name) => view.now[name]), Boolean(view.now.spectrum));
}

function keep(record) {
  view.kept = record;
  element("kept-title").textContent = record ? titleOf(record.setting) : "";
  element("kept-key").textContent = record ? `kept: ${record.setting.norm}` : "";
  redraw();
}

function summarize() {
  const { setting: shown, theory: known, network: seen, correlation, spectrum } = view.now;
  const of = (values, i) => (values ? ` (theory ${number(values.at(i))})` : "");
  const place = placeOf(shown);
  element("summary").textContent =
    `${shown.depth} ${place}s of ${shown.width} units. Signal: ${number(seen.signal[0])} in the first, ${number(seen.signal.at(-1))} in the last` +
    `${of(known.signal, -1)}. Gradient in the first: ${number(seen.gradient[0])} times the last${of(known.gradient, 0)}. ` +
    `Inputs of correlation ${number(correlation.at[1])} have ${number(correlation.mean[1])} in ${place} ${shown.layer}. ` +
    `Largest singular value there: ${number(spectrum.values[0])}${spectrum["largest theory"] ? ` (theory ${number(spectrum["largest theory"])})` : ""}.`;
  const missing = [known.signal ? "" : "the signal", known.correlation ? "" : "the correlation map", spectrum["largest theory"] ? "" : "the singular values"].filter(Boolean);
  const { overBatch, hasStatistics } = norms[shown.norm];
  const batch = overBatch ? " The singular values are those of one input, with the statistics of the batch held fixed." : "";
  const limit = hasStatistics && (shown.gamma !== null || shown.beta !== null) ? " With this γ and β, theory is also that of large batches and groups." : "";
  element("about").textContent = (missing.length ? `For this network there is no theory of ${missing.join(" and ")}.`
    : "Theory is the limit of wide layers. A narrow network scatters around it, the more the deeper it is.") + batch + limit;
}

// -- the program

let sources = "";
async function showProgram() {
  const files = setting.activation === OWN ? ["formula.py", "lab.py"] : ["lab.py"];
  sources = (await Promise.all(files.map(async (name) => (await fetch(own(name))).text()))).join("\n\n");
  document.querySelector("#code code").textContent = `${sources}\n\n${callOf(setting)}\n`;
}

async function copied(button, text) {
  const label = (button.dataset.label ??= button.textContent); // it may say "Copied" still
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "This browser does not copy"; // some do so for https only
  }
  setTimeout(() => (button.textContent = label), 1200);
}

// -- start

for (const id of ["norm", "t-norm"]) for (const [name, { label }] of Object.entries(norms)) element(id).add(new Option(label, name));
for (const id of ["activation", "t-activation"]) {
  for (const name of activations) element(id).add(new Option(name.replace("_", " "), name));
  element(id).add(new Option("your own formula", OWN));
}
course.presets.forEach(({ name }, i) => element("preset").add(new Option(name, String(i))));

element("controls").addEventListener("input", change);
element("controls").addEventListener("change", ({ target }) => target.type === "range" && (moving = null));
element("controls").addEventListener("submit", (event) => event.preventDefault());
element("controls").addEventListener("reset", (event) => {
  event.preventDefault();
  go({});
});
element("preset").addEventListener("input", ({ target }) => {
  const preset = course.presets[Number(target.value)];
  if (target.value === "") return;
  keepForOffline(PARTS);
  go(preset.setting);
  element("preset-note").textContent = preset.note;
});
element("redraw").addEventListener("click", () => {
  setting.seed += setting.networks;
  update();
});
element("link").addEventListener("click", ({ target }) => copied(target, location.href));
element("keep").addEventListener("click", () => keep({ ...view.now }));
element("drop").addEventListener("click", () => keep(null));
element("swap").addEventListener("click", () => {
  const { kept, now } = view;
  setting = { ...kept.setting };
  keep(now);
  moving = null;
  update();
});
element("copy").addEventListener("click", ({ target }) => copied(target, document.querySelector("#code code").textContent));
element("show").addEventListener("click", ({ target }) => {
  const open = element("code").toggleAttribute("hidden") === false;
  target.setAttribute("aria-expanded", String(open));
  target.textContent = open ? "Hide the code" : "Show the code";
  if (open) showProgram().then(() => element("code").scrollIntoView({ behavior: "smooth", block: "nearest" }));
});
document.querySelector(".tabs").addEventListener("input", ({ target }) => (document.querySelector("#stage .grid").dataset.view = target.value));
element("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = getComputedStyle(root).colorScheme === "dark";
  root.dataset.theme = dark ? "light" : "dark";
  training.redraw();
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // it lasts as long as this page
  }
});
addEventListener("hashchange", () => {
  setting = fromAddress(location.hash);
  moving = null;
  update();
});

const lock = (isLocked) => (element("lock").disabled = isLocked);
const training = trainer(() => python?.networks, () => setting.formula, () => keepForOffline(PARTS));
questions(element("question"), course.questions, { go, lock });

settle();
if (JSON.stringify(setting) === JSON.stringify(first.setting)) { // its figures were made with the site, before Python is here
  for (const [name, numbers] of first.panels) view.now[name] = { ...numbers, of: 0 };
  show(first.panels.map(([name]) => name), true);
  summarize();
}
python = new Python(heard);
update();
