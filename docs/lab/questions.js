// Guided questions: the page shows a setting, the reader predicts what a change does, and only then is the change made. A prediction is
// locked once it is given. Answers are not in the page: they are what Python computes.
const KEY = "tinyprop/laboratory";
const CHOICES = { falls: "It falls", same: "It stays about the same", grows: "It grows" };
const NEAR = 1.25; // a change by less than this factor is "about the same"
const MEASURES = {
  signal: { of: (theory) => theory.signal.at(-1), words: "signal in the last layer" },
  gradient: { of: (theory) => theory.gradient[0], words: "gradient in the first layer" },
  correlation: { of: (theory) => theory.correlation[theory.cosines.findIndex((c) => Math.abs(c - 0.5) < 1e-9)], words: "correlation" },
};

export const outcome = (before, after) => (after > before * NEAR ? "grows" : after * NEAR < before ? "falls" : "same");

const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

function stored() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

function store(guesses) {
  try {
    localStorage.setItem(KEY, JSON.stringify(guesses));
  } catch {
    // nothing is kept where storage is forbidden
  }
}

/** `go` shows a setting and promises its theory; `lock` keeps the controls from being used while a prediction is open. */
export function questions(place, all, { go, lock }) {
  const guesses = stored();
  let at = 0;

  function overview() {
    lock(false);
    const { id, ask } = all[at], guess = guesses[id];
    const count = all.filter((one) => one.id in guesses).length;
    const bar = make("p", { className: "buttons" },
      make("button", { type: "button", textContent: "Previous", disabled: at === 0, onclick: () => turn(-1) }),
      make("button", { type: "button", textContent: "Next", disabled: at === all.length - 1, onclick: () => turn(1) }));
    const open = make("button", { type: "button", textContent: guess ? "Show it again" : "Show me the network", onclick: () => (guess ? reveal(guess) : predict()) });
    place.replaceChildren(
      make("p", { className: "note", textContent: `Question ${at + 1} of ${all.length}; ${count} answered` }),
      make("p", { textContent: ask }),
      ...(guess ? [make("p", { textContent: `Your prediction was: ${CHOICES[guess].toLowerCase()}.` })] : []),
      make("p", { className: "buttons" }, open), bar);
  }

  function turn(step) {
    at += step;
    overview();
  }

  async function predict() {
    const { id, ask, before } = all[at];
    lock(true);
    const choices = Object.entries(CHOICES).map(([value, words]) =>
      make("label", {}, make("input", { type: "radio", name: "guess", value, required: true }), ` ${words}`));
    const form = make("form", {},
      make("fieldset", { className: "choices" }, make("legend", { textContent: ask }), ...choices),
      make("p", { className: "note", textContent: "The figures show the network before the change. The controls are locked until you have decided." }),
      make("p", { className: "buttons" },
        make("button", { type: "submit", textContent: "Lock my prediction" }),
        make("button", { type: "button", textContent: "Not now", onclick: overview })));
    form.onsubmit = (event) => {
      event.preventDefault();
      Object.assign(guesses, stored(), { [id]: new FormData(form).get("guess") }); // another tab may have answered others
      store(guesses);
      reveal(guesses[id]);
    };
    place.replaceChildren(form);
    form.querySelector("input").focus({ preventScroll: true });
    await go(before);
  }

  async function reveal(guess) {
    const { before, after, measure, why } = all[at], { of, words } = MEASURES[measure];
    lock(false);
    const answer = make("p", { textContent: "Python is computing …" });
    answer.setAttribute("role", "status");
    place.replaceChildren(answer);
    const first = await go(before), second = await go(after);
    if (!first || !second) return overview(); // the reader has gone elsewhere
    const [from, to] = [of(first), of(second)], found = outcome(from, to);
    const verdict = found === guess ? "As you predicted." : `You predicted: ${CHOICES[guess].toLowerCase()}. Not here.`;
    const digits = (value) => Number(value.toPrecision(3));
    answer.textContent = `${verdict} The ${words} goes from ${digits(from)} to ${digits(to)}. ${why}`;
    answer.dataset.outcome = found;
    place.append(make("p", { className: "buttons" },
      make("button", { type: "button", textContent: at < all.length - 1 ? "Next question" : "Back to the questions", onclick: () => {
        if (at < all.length - 1) at += 1;
        overview();
      } })));
  }

  overview();
}
