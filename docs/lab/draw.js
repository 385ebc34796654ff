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

/** The range of positive values, at least a factor of 8, so that noise does not fill the chart. */
export function logRange(...series) {
  const values = series.flat().filter((v) => v > 0 && Number.isFinite(v));
  const low = Math.min(...values, 0.5) / 1.3, high = Math.max(...values, 2) * 1.3;
  return { log: true, min: low, max: high };
}

function scale(axis, from, to) {
  const f = axis.log ? Math.log10 : (v) => v;
  const low = f(axis.min), high = f(axis.max);
  return (value) => round(from + ((f(value) - low) / (high - low)) * (to - from));
}

/**
 * x and y: {min, max, title, log?}. Series: {kind: "line" | "points" | "bars", x, y, name, error?}; bars have one more
 * x, their edges. `marker` is an x at which a dashed line stands.
 */
export function chart({ x, y, series, marker, description }) {
  const px = scale(x, LEFT, WIDTH - RIGHT), py = scale(y, HEIGHT - BOTTOM, TOP);
  const drawn = (axis, value) => value !== null && Number.isFinite(value) && (!axis.log || value > 0);
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
  for (const one of series) {
    const xs = one.x, ys = one.y ?? [];
    if (one.kind === "bars") {
      const floor = HEIGHT - BOTTOM;
      const steps = ys.map((v, i) => `V${py(Math.min(v, y.max))}H${px(xs[i + 1])}`).join("");
      parts.push(`<path class="bars ${one.name}" d="M${px(xs[0])} ${floor}${steps}V${floor}Z"/>`);
    } else if (one.kind === "line") {
      const points = ys.map((v, i) => (drawn(y, v) ? `${px(xs[i])} ${py(v)}` : null)).filter(Boolean);
      if (points.length) parts.push(`<path class="line ${one.name}" d="M${points.join("L")}"/>`);
    } else {
      ys.forEach((v, i) => {
        if (!drawn(y, v)) return;
        const e = one.error?.[i] ?? 0;
        if (e > 0) parts.push(`<path class="error ${one.name}" d="M${px(xs[i])} ${py(v - e)}V${py(v + e)}"/>`);
        parts.push(`<circle class="point ${one.name}" cx="${px(xs[i])}" cy="${py(v)}" r="${ys.length > 60 ? 2.2 : 3.2}"/>`);
      });
    }
  }
  return `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${description}">${parts.join("")}</svg>`;
}
