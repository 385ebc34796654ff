// Starts Python with NumPy, tinyprop and the files of the laboratory.
import { loadPyodide } from "./pyodide/pyodide.mjs";

export async function boot(say) {
  const { numpy, wheel, modules } = await (await fetch("files.json")).json();
  const bytes = async (url) => {
    const answer = await fetch(url);
    if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
    return answer.arrayBuffer();
  };
  say("Loading Python");
  const files = Promise.all([numpy, wheel, ...modules].map(bytes));
  const python = await loadPyodide({ indexURL: new URL("pyodide/", self.location).href });
  python._module.mergeLibSymbols({ backtrace: () => 0 }); // a symbol that NumPy's build expects and never calls
  const [numpyArchive, tinypropWheel, ...sources] = await files;
  say("Unpacking NumPy");
  python.unpackArchive(numpyArchive, "gztar", { extractDir: "/" });
  python.unpackArchive(tinypropWheel, "wheel");
  modules.forEach((name, i) => python.FS.writeFile(name, new Uint8Array(sources[i])));
  say("Importing tinyprop");
  return python.pyimport("jobs");
}
