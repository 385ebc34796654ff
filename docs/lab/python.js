// Two workers with Python. Whichever is free computes the theory of the newest setting; the second one also has networks, which take longer.
export class Python {
  constructor(heard) {
    this.last = 0;
    this.waiting = null; // what is asked of theory, while no worker is free
    this.workers = ["theory", "networks"].map((name) => {
      const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module", name });
      worker.jobs = new Map(); // the numbers of what it does, by kind
      worker.onmessage = ({ data }) => {
        if (data.done || data.stopped || data.name === "error") this.#ended(worker, data);
        heard({ ...data, from: name });
      };
      worker.onerror = (event) => heard({ broken: event.message || "Python could not start in this browser." });
      return worker;
    });
  }

  get networks() {
    return this.workers[1];
  }

  /** Asks for theory at once, and for networks after a rest, if nothing newer comes. */
  ask(setting, rest) {
    const id = ++this.last;
    this.waiting = { id, setting };
    this.#share();
    clearTimeout(this.timer);
    if (this.networks.jobs.has("network")) this.networks.postMessage({ kind: "network", stop: true });
    this.timer = setTimeout(() => this.#start(this.networks, { kind: "network", id, setting }), rest);
    return id;
  }

  #share() {
    const free = this.workers.find((worker) => !worker.jobs.size);
    if (!free || !this.waiting) return;
    this.#start(free, { kind: "theory", ...this.waiting });
    this.waiting = null;
  }

  #start(worker, job) {
    worker.jobs.set(job.kind, job.id);
    worker.postMessage(job);
  }

  #ended(worker, { kind, id }) {
    if (worker.jobs.get(kind) === id) worker.jobs.delete(kind);
    this.#share();
  }
}
