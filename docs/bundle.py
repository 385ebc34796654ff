"""What Python in a page needs beside NumPy: matplotlib and what it imports, tinyprop, and the files
that the lessons import.

matplotlib's own files are those that are installed here. In place of its compiled modules come the
stand-ins of docs/standins, or, if the folder docs/wheels holds wheels for Pyodide, those: nothing
that runs in the page knows which."""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tinyprop.experiments import experiments_at
from tinyprop.experiments.experiment import decide
from tinyprop.experiments.ledger import Ledger
from tinyprop.experiments.record import Record
from tinyprop.experiments.scales import SCALES
from tinyprop.experiments.study import Study
from tinyprop.train import Config

DOCS = Path(__file__).parent
ROOT = DOCS.parent
STANDINS = DOCS / "standins"
# matplotlib, kiwisolver, contourpy and Pillow, built for the Python of node_modules/pyodide
WHEELS = DOCS / "wheels"
PURE = ("pyparsing", "packaging", "dateutil", "cycler", "threadpoolctl", "tqdm")
BACKENDS = ("__init__", "backend_agg", "backend_mixed", "backend_svg", "backend_template")
BACKENDS += ("registry",)
# as mathtext and plain text look them up
FONTS = ("DejaVuSans*", "cm*", "STIXGeneral.ttf", "STIXSiz*SymReg.ttf", "STIXNonUni.ttf")
FONTS_LEFT_OUT = ("DejaVuSansMono-*", "DejaVuSans-BoldOblique.ttf")
FONT_TOOLS = ("ttLib", "misc", "pens", "encodings", "config")
# for other formats than TrueType, and for programs that change fonts
FONT_TOOLS_LEFT_OUT = ("woff2.py", "ps*.py", "plistlib", "filesystem", "etree.py", "xmlReader.py")
FONT_TOOLS_LEFT_OUT += ("beyond64k.py", "scaleUpem.py", "removeOverlaps.py", "reorderGlyphs.py")
FONT_TOOLS_LEFT_OUT += ("S__i*", "E_B_*", "C_B_*", "T_S_I_*", "G__l_*", "F__e*", "_g_v_a_r.py")
FONT_TOOLS_LEFT_OUT += ("momentsPen.py", "freetypePen.py", "cu2quPen.py", "qu2cuPen.py")
RUNS = Path("figures", "runs")
# of the lessons' folder, what no lesson imports
NOT_IMPORTED = ("build", "release", "animate", "gpu_demo", "grade", "grade_child")


def lay_out(folder: Path) -> None:
    """Write the files of the bundle: packages/ and tutorials/ are for Python's path, figures/ is
    where lesson 10 looks for finished runs."""
    packages = folder / "packages"
    packages.mkdir(parents=True)
    wheels = sorted(WHEELS.glob("*.whl"))
    if wheels:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(packages)
    else:
        matplotlib(packages / "matplotlib")
        font_tools(packages / "fontTools")
        shutil.copytree(STANDINS, packages, dirs_exist_ok=True, ignore=ignored)
    for name in PURE:
        copy_package(name, packages)
    licenses(folder / "licenses")
    shutil.copytree(
        ROOT / "tinyprop", packages / "tinyprop", ignore=shutil.ignore_patterns("__pycache__")
    )
    tutorials = folder / "tutorials"
    tutorials.mkdir()
    for path in helpers():
        shutil.copy(path, tutorials)
    ledger = folder / RUNS
    ledger.mkdir(parents=True)
    for path in evidence():
        shutil.copy(path, ledger)


def helpers() -> list[Path]:
    """What the lessons import, and what that reads."""
    found = []
    for path in sorted((ROOT / "tutorials").iterdir()):
        left_out = path.name[0] in "0123456789E" or path.stem in NOT_IMPORTED
        if path.suffix in (".py", ".toml", ".json") and not left_out:
            found.append(path)
    return found


@dataclass(frozen=True)
class Watched(Ledger):
    """A ledger that notes which of its files were asked for."""

    asked: set[Path] = field(default_factory=set)

    def find(self, config: Config, log: Callable[[str], None] = print) -> Record | None:
        self.asked.add(self.path(config))
        return super().find(config, log)


def evidence() -> list[Path]:
    """The records of finished runs that lesson 10 judges."""
    ledger = Watched(ROOT / RUNS)
    for scale in ("short", "plateau"):
        make = experiments_at(SCALES[scale])["convergence"]
        decide(Study([make], SCALES[scale], ledger, ROOT / "runs").experiments())
    return sorted(path for path in ledger.asked if path.is_file())


def place(name: str) -> Path:
    """The folder of an installed package, or its only file."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        sys.exit(f"got: no package {name!r}. rule: the page needs it. try: pip install {name}")
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin


IGNORED = ("__pycache__", "tests", "*.so", "*.pyd", "*.pyi", "*.pyx", "*.c")
ignored = shutil.ignore_patterns(*IGNORED)


def copy_package(name: str, packages: Path) -> None:
    source = place(name)
    if source.is_dir():
        shutil.copytree(source, packages / name, ignore=ignored)
    else:
        shutil.copy(source, packages)


def matplotlib(target: Path) -> None:
    """Its Python files, without those that draw to windows and documents, and the fonts that are
    used."""
    source = place("matplotlib")

    def left_out(folder: str, names: list[str]) -> set[str]:
        inside = Path(folder).relative_to(source).parts
        skipped = set(ignored(folder, names))
        if not inside:
            skipped |= {"testing", "sphinxext", "mpl-data"}
        elif inside == ("backends",):
            skipped |= {name for name in names if Path(name).stem not in BACKENDS}
        return skipped

    shutil.copytree(source, target, ignore=left_out)
    data, copied = source / "mpl-data", target / "mpl-data"
    shutil.copytree(data / "stylelib", copied / "stylelib")
    shutil.copy(data / "matplotlibrc", copied)
    fonts = copied / "fonts" / "ttf"
    fonts.mkdir(parents=True)
    for pattern in (*FONTS, "LICENSE*"):
        for path in (data / "fonts" / "ttf").glob(pattern):
            if not any(path.match(other) for other in FONTS_LEFT_OUT):
                shutil.copy(path, fonts)


def font_tools(target: Path) -> None:
    """What reads TrueType fonts."""
    source = place("fontTools")
    target.mkdir()
    for name in ("__init__.py", "agl.py", "unicode.py"):
        shutil.copy(source / name, target)
    left_out = shutil.ignore_patterns(*IGNORED, *FONT_TOOLS_LEFT_OUT)
    for name in FONT_TOOLS:
        shutil.copytree(source / name, target / name, ignore=left_out)
    (target / "feaLib").mkdir()
    for name in ("__init__.py", "lookupDebugInfo.py"):
        shutil.copy(source / "feaLib" / name, target / "feaLib")


def licenses(target: Path) -> None:
    """The licences of what is copied."""
    for name in ("matplotlib", "fonttools", "pyparsing", "packaging", "python-dateutil", "cycler"):
        copy_licenses(name, target)
    for name in ("threadpoolctl", "tqdm"):
        copy_licenses(name, target)
    shutil.copy(ROOT / "LICENSE", target / "tinyprop-LICENSE")


def copy_licenses(name: str, target: Path) -> None:
    target.mkdir(exist_ok=True)
    files = importlib.metadata.files(name) or []
    found = [file for file in files if "LICEN" in file.name.upper() or "COPYING" in file.name]
    for file in found:
        source = Path(str(file.locate()))
        if ".dist-info" in str(file) and source.is_file():
            shutil.copy(source, target / f"{name}-{source.name}")


def build(folder: Path, target: Path, numpy: Path) -> None:
    """Compile the bundle with the Python that will run it, and pack it."""
    command = ["node", DOCS / "compile.mjs", folder, target, numpy]
    subprocess.run([str(part) for part in command], check=True, cwd=DOCS)
