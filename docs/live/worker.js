// Runs Python beside a lesson. Cells arrive in order and run one after the other; a page that wants to stop ends this worker.
import { start } from "../../lab/pyodide-edition/start.js";

const OPTIONS = { env: { HOME: "/home/pyodide", MPLCONFIGDIR: "/bundle/config", MPLBACKEND: "svg" } };
const SOURCES = ["page.py", "figure.py"];

let page;

async function boot() {
  postMessage({ status: "Loading Python" });
  const { bundle } = await (await fetch("files.json")).json();
  const { python, files: [packed, ...sources] } = await start([bundle, ...SOURCES], OPTIONS);
  postMessage({ status: "Unpacking" });
  python.unpackArchive(packed, "zip", { extractDir: "/bundle" });
  SOURCES.forEach((name, i) => python.FS.writeFile(name, new Uint8Array(sources[i])));
  postMessage({ status: "Importing tinyprop and matplotlib" });
  page = python.pyimport("page");
  page.start((cell, kind, content, more) => {
    const { what, outcome } = more.toJs({ dict_converter: Object.fromEntries });
    postMessage({ cell, kind, content, what, outcome });
  });
}

const ready = boot();
ready.then(() => postMessage({ ready: true }), (error) => postMessage({ broken: String(error) }));

onmessage = async ({ data }) => {
  try {
    await ready;
  } catch {
    return; // the page knows
  }
  if (data.question !== undefined) {
    page.guess(data.question, data.guess);
    return;
  }
  if (data.file !== undefined) {
    page.write(data.file, data.content);
    return;
  }
  postMessage({ cell: data.cell, kind: "start" });
  let good = false;
  try {
    good = page.run(data.cell, data.source);
  } catch (error) {
    postMessage({ cell: data.cell, kind: "error", content: String(error.message ?? error) });
  }
  postMessage({ cell: data.cell, kind: "end", good });
};
