// The panel of the network that trains: what it asks Python for, and what it draws of the answers.
import { chart, number } from "./draw.js";
import { OWN, known } from "./setting.js";

const element = (id) => document.getElementById(id);
const SHAPES = ["circle", "spiral", "checkers", "moons"];

/** `worker` and `formula` are asked for when they are needed; `begun` is told about the first run. */
export function trainer(worker, formula, begun) {
  const form = element("trainer"), canvas = document.querySelector("#map canvas");
  let points = null, last = null, running = false, held = false;

  for (const shape of SHAPES) form.shape.add(new Option(shape, shape));
  form.norm.value = "batch";

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    begun();
    const { norm, init } = known.norms[form.norm.value];
    const activation = form.activation.value === OWN ? { formula: formula() } : form.activation.value;
    const setting = { norm, init, activation, shape: form.shape.value, batch: Number(form.batch.value), rate: Number(form.rate.value), seed: 0 };
    points = last = null;
    worker().postMessage({ kind: "train", id: 0, setting });
    if (mode() !== "train") worker().postMessage({ kind: "train", note: { mode: mode() } });
    state(true, "Starting");
  });
  element("stop").addEventListener("click", () => {
    held = !held;
    worker().postMessage({ kind: "train", held });
    element("stop").textContent = held ? "Go on" : "Stop";
    element("progress").textContent = held ? `Stopped at step ${last?.step.at(-1) ?? 0}. ${summary()}` : "Training";
  });
  for (const input of form.elements.mode) input.addEventListener("input", () => worker()?.postMessage({ kind: "train", note: { mode: mode() } }));

  const mode = () => form.elements.mode.value;
  const summary = () => (last ? `${Math.round(100 * last.accuracy)} % of new points are right in ${last.mode} mode.` : "");

  function state(isRunning, text) {
    running = isRunning;
    held = false;
    element("stop").disabled = !isRunning;
    element("stop").textContent = "Stop";
    element("run").textContent = isRunning ? "Start again" : "Run";
    element("progress").textContent = text;
    element("training").dataset.state = isRunning ? "running" : "idle";
  }

  function heard({ name, numbers }) {
    if (name === "error") return state(false, numbers.formula ?? numbers.text);
    if (name === "points") return void (points = numbers);
    if (name === "diverged") return state(false, `The loss is infinite after ${numbers.step} steps. Try a smaller learning rate.`);
    last = numbers;
    redraw();
    if (name === "finished" && running) state(false, `Finished after ${last.step.at(-1)} steps. ${summary()}`);
    else if (held || !running) element("progress").textContent = `Stopped at step ${last.step.at(-1)}. ${summary()}`;
    else if (last.step.length % 10 === 1) element("progress").textContent = `Training, step ${last.step.at(-1)}. ${summary()}`;
  }

  function redraw() {
    if (!last) return;
    paint();
    const { step, training, train, eval: evaluated } = last;
    const all = [...train, ...evaluated, ...training].filter((v) => v !== null && Number.isFinite(v));
    element("losses").innerHTML = chart({
      x: { min: 0, max: Math.max(20, step.at(-1)), title: "step", whole: true },
      y: { min: 0, max: Math.max(0.1, Math.min(2.5, 1.05 * Math.max(...all))) },
      series: [{ kind: "line", x: step, y: training, name: "ghost" }, { kind: "line", x: step, y: train, name: "measured" }, { kind: "line", x: step, y: evaluated, name: "theory" }],
      description: `Loss on new points after ${step.at(-1)} steps: ${number(train.at(-1))} in train mode, ${number(evaluated.at(-1))} in eval mode`,
    });
  }

  /** The map, in the colors of the classes, and the points over it. */
  function paint() {
    const { map, accuracy, mode: seen } = last, { side, edge, x, labels } = points;
    const style = getComputedStyle(document.documentElement), drawing = canvas.getContext("2d");
    const colors = ["--zero", "--one", "--card"].map((name) => rgb(style.getPropertyValue(name).trim()));
    const image = drawing.createImageData(side, side);
    map.forEach((percent, i) => {
      const color = colors[percent > 50 ? 1 : 0], strength = 0.75 * Math.abs(percent / 50 - 1);
      for (let k = 0; k < 3; k++) image.data[4 * i + k] = color[k] * strength + colors[2][k] * (1 - strength);
      image.data[4 * i + 3] = 255;
    });
    drawing.putImageData(image, 0, 0);
    canvas.setAttribute("aria-label", `The network is right on ${Math.round(100 * accuracy)} per cent of new points in ${seen} mode`);
    if (element("map").querySelector("svg")?.dataset.shape === form.shape.value && element("map").querySelector("svg").childElementCount === x.length) return;
    const dots = x.map(([a, b], i) => `<circle class="dot ${labels[i] ? "one" : "zero"}" cx="${a.toFixed(3)}" cy="${(-b).toFixed(3)}" r="0.03"/>`);
    element("map").querySelector("svg")?.remove();
    element("map").insertAdjacentHTML("beforeend",
      `<svg viewBox="${-edge} ${-edge} ${2 * edge} ${2 * edge}" aria-hidden="true" data-shape="${form.shape.value}">${dots.join("")}</svg>`);
  }

  return { heard, redraw };
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
