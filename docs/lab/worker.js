// Runs Python beside the page, which stays responsive. One request at a time; a newer one replaces those that wait.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const GLUE = `
import json
import lab
from tinyprop.theory.stacks import Stack

def start(text):
    setting = json.loads(text)
    layer, seed = setting.pop("layer"), setting.pop("seed")
    return lab.panels(Stack(**setting), layer, seed)

def step(panels):
    return json.dumps(next(panels, None), default=lambda value: value.tolist())
`;

let python, latest;

async function boot() {
  const { numpy, wheel } = await (await fetch("files.json")).json();
  const bytes = (url) => fetch(url).then((answer) => answer.arrayBuffer());
  postMessage({ status: "Loading Python" });
  const files = Promise.all([bytes(numpy), bytes(wheel), bytes("lab.py")]);
  python = await loadPyodide({ indexURL: new URL("pyodide/", self.location).href });
  python._module.mergeLibSymbols({ backtrace: () => 0 }); // a symbol that NumPy's build expects and never calls
  const [numpyArchive, tinypropWheel, lab] = await files;
  postMessage({ status: "Unpacking NumPy" });
  python.unpackArchive(numpyArchive, "gztar", { extractDir: "/" });
  python.unpackArchive(tinypropWheel, "wheel");
  python.FS.writeFile("lab.py", new Uint8Array(lab));
  postMessage({ status: "Importing tinyprop" });
  python.runPython(GLUE);
}

const ready = boot();
ready.then(() => postMessage({ ready: true }), (error) => postMessage({ error: String(error) }));
const breath = () => new Promise((done) => setTimeout(done)); // lets newer requests in

onmessage = async ({ data }) => {
  latest = data.id;
  await ready;
  await breath();
  if (data.id !== latest) return;
  let panels;
  try {
    panels = python.globals.get("start")(JSON.stringify(data.setting));
    for (;;) {
      const answer = python.globals.get("step")(panels).replace(/-?\b(NaN|Infinity)\b/g, "null");
      const panel = JSON.parse(answer);
      if (!panel) break;
      postMessage({ id: data.id, name: panel[0], numbers: panel[1] });
      await breath();
      if (data.id !== latest) return;
    }
    postMessage({ id: data.id, done: true });
  } catch (error) {
    postMessage({ id: data.id, error: error.message.trim().split("\n").pop() });
  } finally {
    panels?.destroy();
  }
};
