// Python with tinyprop and the files of the laboratory.
import { start } from "../pyodide-edition/start.js";

export async function boot(say) {
  say("Loading Python");
  const { wheel, modules } = await (await fetch("files.json")).json();
  const { python, files: [tinyprop, ...sources] } = await start([wheel, ...modules]);
  say("Importing tinyprop");
  python.unpackArchive(tinyprop, "wheel");
  modules.forEach((name, i) => python.FS.writeFile(name, new Uint8Array(sources[i])));
  return python.pyimport("jobs");
}
