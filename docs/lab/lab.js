// The page: controls, the address, and what to draw of the numbers that Python sends.
import { chart, logRange, number } from "./draw.js";

const element = (id) => document.getElementById(id);
const { norms, activations, affine, first: start } = await (await fetch("settings.json")).json();
let setting = fromAddress(), request = 0, asked, first, worker;
const shown = {}; // the numbers of each panel

// -- the setting, the address and the controls

function fromAddress() {
  const found = { ...start.setting }, given = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of given) {
    if (name === "norm" && value in norms) found.norm = value;
    else if (name === "norm" && `none/${value}` in norms) found.norm = `none/${value}`; // as links of version 0.2 have it
    else if (name === "activation" && activations.includes(value)) found.activation = value;
    else if (name === "residual") found.residual = value === "1";
    else if (name in found && value !== "" && Number.isFinite(Number(value))) found[name] = Number(value);
  }
  if (!given.has("layer")) found.layer = found.depth;
  return found;
}

function toAddress() {
  const { residual, ...rest } = setting, given = Object.entries(rest).filter(([, value]) => value !== null);
  history.replaceState(null, "", "#" + new URLSearchParams([...given, ["residual", residual ? "1" : "0"]]));
}

/** Puts the setting into the controls, which keep numbers within their ranges, and takes back what they make of it. */
function settle() {
  const begin = affine[setting.norm][setting.activation]; // what γ and β start with, if the normaliser has them
  element("layer").min = setting.residual ? 0 : 1;
  element("layer").max = setting.depth;
  for (const name of ["norm", "activation", "gamma", "beta", "depth", "width", "batch", "layer"]) {
    const input = element(name), optional = name === "gamma" || name === "beta";
    if (optional) {
      input.disabled = !(name in begin);
      if (input.disabled) setting[name] = null;
    }
    input.value = optional ? (setting[name] ?? begin[name] ?? (name === "gamma" ? 1 : 0)) : setting[name];
    if (input.type === "range") {
      if (setting[name] !== null) setting[name] = Number(input.value);
      const text = input.disabled ? "none" : optional ? Number(setting[name] ?? begin[name]).toFixed(2) : input.value;
      document.querySelector(`output[for="${name}"]`).textContent = text;
    }
  }
  element("residual").checked = setting.residual;
  setting.seed = Math.max(0, Math.round(setting.seed));
  element("norm-note").textContent = norms[setting.norm].note;
  element("affine-note").textContent = "gamma" in begin ? "" : "This normaliser has no scale and no shift here.";
  document.querySelectorAll("#code code")[0].textContent = program();
}

function change(event) {
  const { name, type, value, checked } = event.target;
  const wasLast = setting.layer === setting.depth;
  if (name === "norm" || name === "activation") setting.gamma = setting.beta = null; // to what the layers start with
  setting[name] = type === "checkbox" ? checked : type === "range" ? Number(value) : value;
  if (name === "depth" && wasLast) setting.layer = setting.depth;
  update();
}

function update() {
  settle();
  toAddress();
  ask();
}

// -- Python

const stack = () => { const { layer, seed, norm, ...rest } = setting; return { norm: norms[norm].norm, init: norms[norm].init, ...rest }; };

function ask() {
  if (!worker) return;
  asked = performance.now();
  document.querySelectorAll("figure").forEach((figure) => figure.setAttribute("aria-busy", "true"));
  worker.postMessage({ id: ++request, setting: { ...stack(), layer: setting.layer, seed: setting.seed } });
}

function answer({ data }) {
  if (data.error && (data.id === undefined || data.id === request)) return say(data.error, true);
  if (data.status) return say(`${data.status} …`);
  if (data.ready) asked = performance.now();
  if (data.id !== request) return;
  if (data.done) {
    say(`First curves after ${first} ms, all after ${since()} ms`);
    summarize();
    document.documentElement.dataset.answered = String(data.id);
    return;
  }
  draw(data.name, data.numbers);
  if (data.name === "layers") first = since();
}

function draw(name, numbers) {
  shown[name] = numbers;
  DRAW[name](numbers);
}

const since = () => Math.round(performance.now() - asked);

function say(text, wrong = false) {
  element("status").textContent = text;
  element("status").classList.toggle("error", wrong);
}

const python = (value) => (value === null ? "None" : typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value));
let source = "";
function program() {
  const given = Object.entries(stack()).map(([name, value]) => `${name}=${python(value)}`).join(", ");
  return `${source}\n\nshow(Stack(${given}), layer=${setting.layer}, seed=${setting.seed})\n`;
}

// -- the figures

function put(id, svg, columns) {
  const figure = element(id);
  let plot = figure.querySelector(".plot");
  if (!plot) {
    figure.insertAdjacentHTML("beforeend", `<div class="plot"></div><details><summary>Numbers</summary><div tabindex="0"><table></table></div></details>`);
    plot = figure.querySelector(".plot");
  }
  plot.innerHTML = svg;
  const names = Object.keys(columns), rows = Math.max(...Object.values(columns).map((c) => c.length));
  const line = (tag, cells) => `<tr>${cells.map((c) => `<${tag}>${c ?? ""}</${tag}>`).join("")}</tr>`;
  const digits = (v) => (typeof v === "number" ? Number(v.toPrecision(6)) : v);
  figure.querySelector("table").innerHTML = line("th", names) +
    Array.from({ length: rows }, (_, i) => line("td", names.map((name) => digits(columns[name][i])))).join("");
  figure.setAttribute("aria-busy", "false");
}

const place = () => (setting.residual ? "residual block" : "layer");

function byLayer(id, { layers, [id]: network, [`${id} theory`]: theory }) {
  const title = id === "signal" ? "Standard deviation of a unit over inputs" : "Gradient relative to the last layer";
  put(id, chart({
    x: { min: layers[0], max: layers.at(-1), title: place(), whole: true },
    y: logRange(network, theory ?? []),
    series: [{ kind: "line", x: layers, y: theory ?? [], name: "theory" }, { kind: "points", x: layers, y: network, name: "network" }],
    marker: setting.layer,
    description: `${title}, for ${layers.length} layers: network from ${number(network[0])} to ${number(network.at(-1))}` +
      (theory ? `, theory from ${number(theory[0])} to ${number(theory.at(-1))}` : ", no theory"),
  }), { [place()]: layers, network, ...(theory && { theory }) });
}

const DRAW = {
  layers(numbers) {
    byLayer("signal", numbers);
    byLayer("gradient", numbers);
  },
  distribution({ edges, all, about, "theory std": std }) {
    const at = Array.from({ length: 161 }, (_, i) => edges[0] + (i / 160) * (edges.at(-1) - edges[0]));
    const gauss = std === null ? [] : at.map((z) => Math.exp(-0.5 * (z / std) ** 2) / (std * Math.sqrt(2 * Math.PI)));
    put("distribution", chart({
      x: { min: edges[0], max: edges.at(-1), title: `value in ${place()} ${setting.layer}` },
      y: { min: 0, max: 1.08 * Math.max(...all, ...about) },
      series: [{ kind: "bars", x: edges, y: all, name: "all" }, { kind: "bars", x: edges, y: about, name: "about" },
        { kind: "line", x: at, y: gauss.map((v) => (v > 1.08 * Math.max(...all, ...about) ? null : v)), name: "theory" }],
      description: `Histograms of the values in ${place()} ${setting.layer}` + (std === null ? "" : `; theory: Gaussian of standard deviation ${number(std)}`),
    }), { "bin from": edges.slice(0, -1), all, "about unit means": about });
  },
  correlation({ cosines, theory, at, mean, std }) {
    put("correlation", chart({
      x: { min: -1, max: 1, title: "correlation of two inputs" },
      y: { min: Math.min(-1, ...mean), max: 1.05 },
      series: [{ kind: "line", x: [-1, 1], y: [-1, 1], name: "same" }, { kind: "line", x: cosines, y: theory ?? [], name: "theory" },
        { kind: "points", x: at, y: mean, error: std, name: "network" }],
      description: `Correlation in ${place()} ${setting.layer} against that of the inputs: ` +
        at.map((c, i) => `${number(c)} becomes ${number(mean[i])}`).join(", "),
    }), { inputs: at, network: mean, "standard deviation": std, ...(theory && { "inputs, theory": cosines, theory }) });
  },
  spectrum({ values, "largest theory": largest }) {
    const floor = values[0] * 1e-6, ranks = values.map((_, i) => i + 1);
    put("spectrum", chart({
      x: { min: 1, max: values.length, title: "number, by size", whole: true },
      y: logRange(values.filter((v) => v > floor), largest ? [largest] : []),
      series: [{ kind: "points", x: ranks, y: values.map((v) => (v > floor ? v : null)), name: "network" },
        { kind: "line", x: [1, values.length], y: largest ? [largest, largest] : [], name: "theory" }],
      description: `Singular values from ${number(values[0])} down to ${number(values.at(-1))}` +
        (largest ? `; theory of the largest ${number(largest)}` : ""),
    }), { number: ranks, network: values, ...(largest && { "largest, theory": [largest] }) });
  },
};

function summarize() {
  const { signal, gradient, "signal theory": signalTheory, "gradient theory": gradientTheory } = shown.layers;
  const theory = (values, i) => (values ? ` (theory ${number(values.at(i))})` : "");
  const { mean, at } = shown.correlation;
  element("summary").textContent =
    `${setting.depth} ${place()}s of ${setting.width} units. Signal: ${number(signal[0])} in the first, ${number(signal.at(-1))} in the last` +
    `${theory(signalTheory, -1)}. Gradient in the first: ${number(gradient[0])} times the last${theory(gradientTheory, 0)}. ` +
    `Inputs of correlation ${number(at[1])} have ${number(mean[1])} in ${place()} ${setting.layer}. ` +
    `Largest singular value there: ${number(shown.spectrum.values[0])}${shown.spectrum["largest theory"] ? ` (theory ${number(shown.spectrum["largest theory"])})` : ""}.`;
  const missing = [signalTheory ? "" : "the signal", shown.correlation.theory ? "" : "the correlation map", shown.spectrum["largest theory"] ? "" : "the singular values"].filter(Boolean);
  const { overBatch, hasStatistics } = norms[setting.norm];
  const batch = overBatch ? " The singular values are those of one input, with the statistics of the batch held fixed." : "";
  const limit = setting.gamma !== null || setting.beta !== null ? " With this γ and β, theory is also that of large batches and groups." : "";
  element("about").textContent = (missing.length ? `For this network there is no theory of ${missing.join(" and ")}.` : "Theory is the limit of wide layers. A narrow network scatters around it, the more the deeper it is.") +
    batch + (hasStatistics ? limit : "");
}

// -- start

const copied = (button, text) => navigator.clipboard.writeText(text).then(() => {
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = label), 1200);
});

for (const [name, { label }] of Object.entries(norms)) element("norm").add(new Option(label, name));
for (const name of activations) element("activation").add(new Option(name.replace("_", " "), name));
element("controls").addEventListener("input", change);
element("controls").addEventListener("submit", (event) => event.preventDefault());
element("controls").addEventListener("reset", (event) => { event.preventDefault(); setting = { ...start.setting }; update(); });
element("redraw").addEventListener("click", () => { setting.seed += 1; update(); });
element("link").addEventListener("click", (event) => copied(event.target, location.href));
element("copy").addEventListener("click", (event) => copied(event.target, program()));
element("show").addEventListener("click", ({ target }) => {
  const open = element("code").toggleAttribute("hidden") === false;
  target.setAttribute("aria-expanded", String(open));
  target.textContent = open ? "Hide the code" : "Show the code";
  if (open) element("code").scrollIntoView({ behavior: "smooth", block: "nearest" });
});
element("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
  localStorage.setItem("theme", (document.documentElement.dataset.theme = dark ? "light" : "dark"));
});
addEventListener("hashchange", () => { setting = fromAddress(); update(); });

source = await (await fetch("lab.py")).text();
settle();
if (JSON.stringify(setting) === JSON.stringify(start.setting)) {
  for (const [name, numbers] of start.panels) draw(name, numbers); // made with the site, before Python is here
  summarize();
}
worker = new Worker("worker.js", { type: "module" });
worker.onmessage = answer;
worker.onerror = (event) => say(event.message || "Python could not start in this browser.", true);
update();
