// The five figures, from the numbers that Python sends. A record has the numbers of a setting: {setting, theory, network, ...}; what is
// shown has the record of `now`, of `kept`, beside which now is drawn, and of `ghost`, the setting before the last change.
import { chart, logRange, number } from "./draw.js";

const element = (id) => document.getElementById(id);
const GRID = 161; // points of a bell curve

export const placeOf = ({ residual }) => (residual ? "residual block" : "layer");

/** Draws the figures that these numbers are part of, of those that are in sight. With `tables`, the numbers under them are written, too. */
export function draw(names, { now, kept, ghost }, tables, inSight) {
  const wanted = new Set(names.flatMap((name) => SHOWS[name]));
  for (const id of wanted) {
    if (inSight && !inSight.has(id)) continue;
    const figure = FIGURES[id], records = [now, kept, ghost].filter((record) => record?.theory);
    if (!figure.has(now)) continue;
    const axes = figure.axes(records.filter(figure.has), now);
    const of = (record, others) => chart({
      ...axes,
      series: [...others.flatMap(([name, other]) => (other?.theory ? figure.line(other, name) : [])), ...figure.series(record)],
      marker: figure.marker?.(record),
      description: figure.describe(record),
    });
    const plots = [];
    if (kept && figure.has(kept)) plots.push(`<div class="plot kept">${of(kept, [])}</div>`);
    plots.push(`<div class="plot now">${of(now, [["ghost", ghost], ["kept", kept]])}</div>`);
    put(id, plots, tables ? figure.columns(now) : null);
  }
}

function put(id, plots, columns) {
  const figure = element(id);
  if (!figure.querySelector(".plots"))
    figure.insertAdjacentHTML("beforeend", `<div class="plots"></div><details><summary>Numbers</summary><div tabindex="0" role="group" aria-label="Numbers"><table></table></div></details>`);
  figure.querySelector(".plots").innerHTML = plots.join("");
  if (!columns) return;
  const names = Object.keys(columns), rows = Math.max(...Object.values(columns).map((c) => c.length));
  const line = (tag, cells) => `<tr>${cells.map((c) => `<${tag}>${c ?? ""}</${tag}>`).join("")}</tr>`;
  const digits = (v) => (typeof v === "number" ? Number(v.toPrecision(6)) : v);
  figure.querySelector("table").innerHTML = line("th", names) +
    Array.from({ length: rows }, (_, i) => line("td", names.map((name) => digits(columns[name][i])))).join("");
}

const SHOWS = {
  theory: ["signal", "gradient", "distribution", "correlation"],
  network: ["signal", "gradient"],
  band: ["signal", "gradient"],
  distribution: ["distribution"],
  correlation: ["correlation"],
  spectrum: ["spectrum"],
};

/** Points of a network that belongs to an earlier setting, while a slider moves, are pale. */
const age = (part, record) => (part?.of === record.id ? "network" : "network stale");
const current = (part, record) => (part && part.of === record.id ? part : null);

function byLayer(id, title) {
  const words = { signal: "Standard deviation of a unit over inputs", gradient: "Gradient relative to the last layer" }[id];
  return {
    has: (record) => Boolean(record?.theory),
    axes(records, now) {
      const values = records.flatMap((record) => [...(record.theory[id] ?? []), ...(current(record.network, record)?.[id] ?? []),
        ...(current(record.band, record)?.[`${id} lowest`] ?? []), ...(current(record.band, record)?.[`${id} highest`] ?? [])]);
      const seen = values.length ? values : (now.network?.[id] ?? []);
      return {
        x: { min: now.theory.layers[0], max: Math.max(...records.map((r) => r.theory.layers.at(-1))), title: placeOf(now.setting), whole: true },
        y: logRange(seen, id === "gradient" ? [1] : []),
      };
    },
    line: ({ theory }, name) => [{ kind: "line", x: theory.layers, y: theory[id] ?? [], name }],
    series(record) {
      const { theory, network, band } = record, found = [];
      if (current(band, record)) found.push({ kind: "band", x: band.layers, low: band[`${id} lowest`], high: band[`${id} highest`], name: "network" });
      found.push({ kind: "line", x: theory.layers, y: theory[id] ?? [], name: "theory" });
      if (network) found.push({ kind: "points", x: network.layers, y: network[id], name: age(network, record) });
      return found;
    },
    marker: ({ setting }) => setting.layer,
    describe({ theory, network, ...record }) {
      const of = current(network, record)?.[id], known = theory[id];
      return `${words}, for ${theory.layers.length} layers` + (of ? `: network from ${number(of[0])} to ${number(of.at(-1))}` : "") +
        (known ? `, theory from ${number(known[0])} to ${number(known.at(-1))}` : ", no theory");
    },
    columns({ setting, theory, network, band }) {
      const of = band ? { lowest: band[`${id} lowest`], highest: band[`${id} highest`] } : {};
      return { [placeOf(setting)]: theory.layers, network: network[id], ...(theory[id] && { theory: theory[id] }), ...of };
    },
  };
}

const bell = (std, half) => {
  const x = Array.from({ length: GRID }, (_, i) => half * ((2 * i) / (GRID - 1) - 1));
  return { x, y: x.map((z) => Math.exp(-0.5 * (z / std) ** 2) / (std * Math.sqrt(2 * Math.PI))) };
};

/** Half the width of the axis: four standard deviations, in steps, so that it follows a signal that fades. */
function halfWidth(records) {
  const widest = Math.max(...records.map((record) => Math.max(4 * (record.theory.std ?? 0), current(record.distribution, record)?.edges.at(-1) ?? 0)));
  const power = 10 ** Math.floor(Math.log10(widest || 1));
  return power * [1, 1.5, 2, 3, 4, 6, 8, 10].find((step) => step * power >= widest * 0.999);
}

const FIGURES = {
  signal: byLayer("signal"),
  gradient: byLayer("gradient"),
  distribution: {
    has: (record) => Boolean(record?.theory && (record.theory.std || record.distribution)),
    axes(records, now) {
      const half = halfWidth(records);
      const tops = records.map((record) => {
        const bars = current(record.distribution, record);
        return Math.max(record.theory.std ? bell(record.theory.std, half).y[(GRID - 1) / 2] : 0, ...(bars?.all ?? [0]), ...(bars?.about ?? [0]));
      });
      return { x: { min: -half, max: half, title: `value in ${placeOf(now.setting)} ${now.setting.layer}` }, y: { min: 0, max: 1.08 * Math.max(...tops) } };
    },
    line: (record, name) => (record.theory.std ? [{ kind: "line", ...bell(record.theory.std, 4 * record.theory.std), name }] : []),
    series(record) {
      const bars = record.distribution, std = record.theory.std, found = [];
      if (bars) {
        const stale = bars.of === record.id ? "" : " stale";
        found.push({ kind: "bars", x: bars.edges, y: bars.all, name: `all${stale}` }, { kind: "bars", x: bars.edges, y: bars.about, name: `about${stale}` });
      }
      if (std) found.push({ kind: "line", ...bell(std, 4 * std), name: "theory" });
      return found;
    },
    describe: ({ setting, theory: { std } }) =>
      `Histograms of the values in ${placeOf(setting)} ${setting.layer}` + (std ? `; theory: Gaussian of standard deviation ${number(std)}` : ""),
    columns: ({ distribution }) => ({ "bin from": distribution.edges.slice(0, -1), all: distribution.all, "about unit means": distribution.about }),
  },
  correlation: {
    has: (record) => Boolean(record?.theory && (record.theory.correlation || record.correlation)),
    axes: (records) => ({
      x: { min: -1, max: 1, title: "correlation of two inputs" },
      y: { min: Math.min(-1, ...records.flatMap((record) => current(record.correlation, record)?.mean ?? [])), max: 1.05 },
    }),
    line: ({ theory }, name) => (theory.correlation ? [{ kind: "line", x: theory.cosines, y: theory.correlation, name }] : []),
    series(record) {
      const { theory, correlation } = record, found = [{ kind: "line", x: [-1, 1], y: [-1, 1], name: "same" }];
      if (theory.correlation) found.push({ kind: "line", x: theory.cosines, y: theory.correlation, name: "theory" });
      if (correlation) found.push({ kind: "points", x: correlation.at, y: correlation.mean, error: correlation.std, name: age(correlation, record) });
      return found;
    },
    describe: ({ setting, correlation, theory }) => `Correlation in ${placeOf(setting)} ${setting.layer} against that of the inputs: ` +
      (correlation ? correlation.at.map((c, i) => `${number(c)} becomes ${number(correlation.mean[i])}`).join(", ")
        : `theory from ${number(theory.correlation[0])} to ${number(theory.correlation.at(-1))}`),
    columns: ({ theory, correlation: { at, mean, std } }) =>
      ({ inputs: at, network: mean, "standard deviation": std, ...(theory.correlation && { "inputs, theory": theory.cosines, theory: theory.correlation }) }),
  },
  spectrum: {
    has: (record) => Boolean(record?.spectrum),
    axes(records) {
      const seen = records.flatMap(({ spectrum: { values, "largest theory": largest } }) => [...values.filter((v) => v > values[0] * 1e-6), ...(largest ? [largest] : [])]);
      return { x: { min: 1, max: Math.max(...records.map((r) => r.spectrum.values.length)), title: "number, by size", whole: true }, y: logRange(seen) };
    },
    line: ({ spectrum }, name) => (spectrum && name === "kept" ? [{ kind: "line", x: spectrum.values.map((_, i) => i + 1), y: spectrum.values.map((v) => (v > spectrum.values[0] * 1e-6 ? v : null)), name }] : []),
    series(record) {
      const { values, "largest theory": largest } = record.spectrum;
      const ranks = values.map((_, i) => i + 1), floor = values[0] * 1e-6;
      return [{ kind: "points", x: ranks, y: values.map((v) => (v > floor ? v : null)), name: age(record.spectrum, record) },
        { kind: "line", x: [1, values.length], y: largest ? [largest, largest] : [], name: "theory" }];
    },
    describe: ({ spectrum: { values, "largest theory": largest } }) => `Singular values from ${number(values[0])} down to ${number(values.at(-1))}` +
      (largest ? `; theory of the largest ${number(largest)}` : ""),
    columns: ({ spectrum: { values, "largest theory": largest } }) =>
      ({ number: values.map((_, i) => i + 1), network: values, ...(largest && { "largest, theory": [largest] }) }),
  },
};
