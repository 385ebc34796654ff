// Starts Python with NumPy, and loads files meanwhile. It lies beside Pyodide, for the laboratory and for lessons.
import { loadPyodide } from "./pyodide.mjs";

const HERE = new URL(".", import.meta.url);

/** Python, and the bytes of files. */
export async function start(addresses, options = {}) {
  const [python, numpy, ...files] = await Promise.all([
    loadPyodide({ indexURL: HERE.href, ...options }), ...[new URL("numpy.tar.gz", HERE), ...addresses].map(bytes),
  ]);
  python._module.mergeLibSymbols({ backtrace: () => 0 }); // a symbol that NumPy's build expects and never calls
  python.unpackArchive(numpy, "gztar", { extractDir: "/" });
  return { python, files };
}

async function bytes(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  return answer.arrayBuffer();
}
