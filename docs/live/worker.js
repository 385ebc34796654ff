// Runs Python beside a lesson. Cells arrive in order and run one after the other; a page that wants to stop ends this worker.
import { loadPyodide } from "../lab/pyodide/pyodide.mjs";

let page;

async function boot() {
  const { numpy, bundle } = await (await fetch("files.json")).json();
  const bytes = async (url) => {
    const answer = await fetch(url);
    if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
    return answer.arrayBuffer();
  };
  postMessage({ status: "Loading Python" });
  const files = Promise.all([bytes(numpy), bytes(bundle), bytes("page.py"), bytes("figure.py")]);
  const python = await loadPyodide({
    indexURL: new URL("../lab/pyodide/", self.location).href,
    env: { HOME: "/home/pyodide", MPLCONFIGDIR: "/bundle/config", MPLBACKEND: "svg" },
  });
  python._module.mergeLibSymbols({ backtrace: () => 0 }); // a symbol that NumPy's build expects and never calls
  const [numpyArchive, bundleArchive, ...sources] = await files;
  postMessage({ status: "Unpacking" });
  python.unpackArchive(numpyArchive, "gztar", { extractDir: "/" });
  python.unpackArchive(bundleArchive, "zip", { extractDir: "/bundle" });
  for (const [i, name] of ["page.py", "figure.py"].entries()) python.FS.writeFile(name, new Uint8Array(sources[i]));
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
