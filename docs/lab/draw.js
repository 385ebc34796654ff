// Charts as SVG text. Colors, weights and fonts are in style.css.
const WIDTH = 440, HEIGHT = 270, LEFT = 52, RIGHT = 18, TOP = 10, BOTTOM = 40;
const round = (value) => Math.round(value * 100) / 100;

export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) {
    const power = Math.floor(Math.log10(size));
    const digits = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
    const mantissa = (value / 10 ** power).toFixed(1);
    const exponent = "10" + [...String(power)].map((c) => digits[c]).join("");
    return mantissa === "1.0" ? exponent : `${mantissa} · ${exponent}`;
  }
  return String(Number(value.toPrecision(3)));
}

/** Ticks at 1, 2 or 5 times a power of ten. */
function linearTicks(low, high, most = 6) {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= raw);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const every = Math.ceil((last - first + 1) / 6), ticks = [];
  if (last - first >= 2) {
    for (let power = first; power <= last; power += every) ticks.push(10 ** power);
    return ticks;
  }
  for (let power = first - 1; power <= last; power++)
    for (const m of last > first ? [1, 3] : [1, 2, 5]) if (m * 10 ** power >= low && m * 10 ** power <= high) ticks.push(m * 10 ** power);
  return ticks;
}

/** The range of positive values in half powers of ten, so that it moves in steps; at least a factor of ten. */
export function logRange(...series) {
  const values = series.flat().filter((v) => v > 0 && Number.isFinite(v));
  if (!values.length) return { log: true, min: 0.1, max: 10 };
  let low = Math.floor(2 * Math.log10(Math.min(...values) / 1.05)) / 2;
  let high = Math.ceil(2 * Math.log10(Math.max(...values) * 1.05)) / 2;
  if (high - low < 1) high += 0.5;
  if (high - low < 1) low -= 0.5;
  return { log: true, min: 10 ** low, max: 10 ** high };
}

function scale(axis, from, to) {
  const f = axis.log ? Math.log10 : (v) => v;
  const low = f(axis.min), high = f(axis.max);
  return (value) => round(from + ((f(value) - low) / (high - low)) * (to - from));
}

const escaped = (text) => text.replace(/&/g, "&amp;").replace(/"/g, "&quot;").replace(/</g, "&lt;");

/**
 * x and y: {min, max, title, log?}. Series: {kind, name, x, y}: "line", "points" (with an `error`), "bars" (with one more x, their
 * edges) or "band" (with `low` and `high` in place of y). `marker` is an x at which a dashed line stands.
 */
export function chart({ x, y, series, marker, description }) {
  const px = scale(x, LEFT, WIDTH - RIGHT), py = scale(y, HEIGHT - BOTTOM, TOP);
  const parts = [];
  for (const tick of y.log ? logTicks(y.min, y.max) : linearTicks(y.min, y.max))
    parts.push(`<path class="grid" d="M${LEFT} ${py(tick)}H${WIDTH - RIGHT}"/>` +
      `<text class="tick" x="${LEFT - 7}" y="${py(tick) + 4}" text-anchor="end">${number(tick)}</text>`);
  for (const tick of linearTicks(x.min, x.max, 8).filter((t) => !x.whole || Number.isInteger(t)))
    parts.push(`<path class="axis" d="M${px(tick)} ${HEIGHT - BOTTOM}v4"/>` +
      `<text class="tick" x="${px(tick)}" y="${HEIGHT - BOTTOM + 17}" text-anchor="middle">${number(tick)}</text>`);
  parts.push(`<path class="axis" d="M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}"/>`);
  parts.push(`<text class="title" x="${(LEFT + WIDTH - RIGHT) / 2}" y="${HEIGHT - 5}" text-anchor="middle">${x.title}</text>`);
  if (marker !== undefined) parts.push(`<path class="marker" d="M${px(marker)} ${TOP}V${HEIGHT - BOTTOM}"/>`);
  const inside = (x0, v) => v !== null && Number.isFinite(v) && (!y.log || v > 0) && x0 >= x.min && x0 <= x.max;
  const within = (v) => py(Math.min(Math.max(v, y.min), y.max));
  for (const one of series) parts.push(MARKS[one.kind](one, { px, within, inside }));
  return `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${escaped(description)}">${parts.join("")}</svg>`;
}

const MARKS = {
  line({ x, y, name }, { px, within, inside }) {
    const points = y.map((v, i) => (inside(x[i], v) ? `${px(x[i])} ${within(v)}` : null)).filter(Boolean);
    return points.length ? `<path class="line ${name}" d="M${points.join("L")}"/>` : "";
  },
  points({ x, y, name, error }, { px, within, inside }) {
    const parts = [], radius = y.length > 60 ? 2.2 : 3.2;
    y.forEach((v, i) => {
      if (!inside(x[i], v)) return;
      const e = error?.[i] ?? 0;
      if (e > 0) parts.push(`<path class="error ${name}" d="M${px(x[i])} ${within(v - e)}V${within(v + e)}"/>`);
      parts.push(`<circle class="point ${name}" cx="${px(x[i])}" cy="${within(v)}" r="${radius}"/>`);
    });
    return parts.join("");
  },
  bars({ x, y, name }, { px, within }) {
    const floor = HEIGHT - BOTTOM;
    const steps = y.map((v, i) => `V${within(v)}H${px(x[i + 1])}`).join("");
    return `<path class="bars ${name}" d="M${px(x[0])} ${floor}${steps}V${floor}Z"/>`;
  },
  band({ x, low, high, name }, { px, within, inside }) {
    const ends = (values) => values.map((v, i) => (inside(x[i], v) ? `${px(x[i])} ${within(v)}` : null));
    const above = ends(high).filter(Boolean), below = ends(low).filter(Boolean).reverse();
    return above.length && below.length ? `<path class="band ${name}" d="M${[...above, ...below].join("L")}Z"/>` : "";
  },
};
