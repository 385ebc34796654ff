// node compile.mjs FOLDER TARGET NUMPY: compile the Python files of a folder with the Python that will run them, let matplotlib find
// its fonts, and pack all of it as a zip file.
import { readFile, writeFile } from "node:fs/promises";
import { loadPyodide } from "./node_modules/pyodide/pyodide.mjs";

const PACK = `
import os, py_compile, sys, warnings, zipfile
from pathlib import Path

bundle, packages = Path("/bundle"), Path("/bundle/packages")
for path in sorted(bundle.rglob("*.py")):
    own = path.is_relative_to(packages / "tinyprop") or path.is_relative_to(bundle / "tutorials")
    # by their hash: dates differ from one file system to another; tracebacks show the source of what stays
    target = None if own else path.with_suffix(".pyc")
    py_compile.compile(path, target, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    if not own:
        path.unlink()

os.environ["MPLCONFIGDIR"] = str(bundle / "config")
sys.path[:0] = [str(packages), str(bundle / "tutorials")]
import logging
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", "Unable to import Axes3D")
import lesson
figure, (axes,) = lesson.panels(1, 4, 3)
axes.set(title=r"$\\alpha$")
figure.savefig("/tmp/figure.svg")

EPOCH = (1980, 1, 1, 0, 0, 0)  # so that the same files are the same bundle
with zipfile.ZipFile("/tmp/bundle.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for path in sorted(bundle.rglob("*")):
        if path.is_file() and path.suffix != ".lock":
            archive.writestr(zipfile.ZipInfo(str(path.relative_to(bundle)), EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
`;

const [folder, target, numpy] = process.argv.slice(2);
const python = await loadPyodide();
python._module.mergeLibSymbols({ backtrace: () => 0 }); // a symbol that NumPy's build expects and never calls
python.unpackArchive(new Uint8Array(await readFile(numpy)), "gztar", { extractDir: "/" });
python.FS.mkdir("/bundle");
python.FS.mount(python.FS.filesystems.NODEFS, { root: folder }, "/bundle");
python.runPython(PACK);
await writeFile(target, python.FS.readFile("/tmp/bundle.zip"));
