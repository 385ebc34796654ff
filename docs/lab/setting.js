// The setting: from and to the address, and what Python is asked with it.
/** The address of a file of the laboratory. */
export const own = (name) => new URL(name, import.meta.url);

export const OWN = "own"; // the activation that is a formula

/** What settings.json and course.json say of normalisers, activations, start values and the first setting. */
export const known = await (await fetch(own("settings.json"))).json();

export function fromAddress(hash) {
  const { norms, activations, first } = known;
  const found = { ...first.setting }, given = new URLSearchParams(hash.slice(1));
  for (const [name, value] of given) {
    if (name === "norm" && value in norms) found.norm = value;
    else if (name === "norm" && `none/${value}` in norms) found.norm = `none/${value}`; // as links of version 0.2 have it
    else if (name === "activation" && (value === OWN || activations.includes(value))) found.activation = value;
    else if (name === "formula") found.formula = value.slice(0, 200);
    else if (name === "residual") found.residual = value === "1";
    else if (name in found && !["norm", "activation"].includes(name) && value !== "" && Number.isFinite(Number(value))) found[name] = Number(value);
  }
  if (!given.has("layer")) found.layer = found.depth;
  return found;
}

export function toAddress({ residual, formula, ...rest }) {
  const given = Object.entries(rest).filter(([, value]) => value !== null);
  if (rest.activation === OWN) given.push(["formula", formula]);
  return "#" + new URLSearchParams([...given, ["residual", residual ? "1" : "0"]]);
}

/** A whole setting from a part of one. */
export function completed(part) {
  const setting = { ...known.first.setting, ...part };
  return { ...setting, layer: part.layer ?? setting.depth };
}

/** γ and β that its layers start with, if they have them. */
export function starts({ norm, activation }) {
  return known.affine[norm][activation === OWN ? "identity" : activation];
}

/** The network of a setting, as `Stack` takes it. */
export function stackOf({ layer, seed, networks, formula, norm, activation, ...rest }) {
  const { norm: name, init } = known.norms[norm];
  return { norm: name, init, activation: activation === OWN ? { formula } : activation, ...rest };
}

export function titleOf(setting) {
  const { norm, activation, formula, depth, width, batch, residual, gamma, beta } = setting;
  const parts = [norm, activation === OWN ? formula : activation.replace("_", " ")];
  if (gamma !== null) parts.push(`γ ${gamma.toFixed(2)}`);
  if (beta !== null) parts.push(`β ${beta.toFixed(2)}`);
  parts.push(`depth ${depth}`, `width ${width}`, `batch ${batch}`);
  if (residual) parts.push("residual");
  return parts.join(", ");
}

const python = (value) => (value === null ? "None" : typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value));

/** The call at the end of the program that the page shows. */
export function callOf(setting) {
  const given = Object.entries(stackOf(setting)).map(([name, value]) =>
    `${name}=${name === "activation" && typeof value === "object" ? `activation(${python(value.formula)})` : python(value)}`);
  return `show(Stack(${given.join(", ")}), layer=${setting.layer}, seed=${setting.seed}, networks=${setting.networks})`;
}
