"""`make site`: the pages and the laboratory, in a folder that any static host can serve."""

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import editions
import functions
import lab.lab as lab
import live
from PIL import Image

import tinyprop as tp
from tinyprop.theory.stacks import Stack

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SITE = ROOT / "site"
MODULES = DOCS / "node_modules"
MOST_BYTES = 60_000_000
SVG = "image/svg+xml"
REPAIRS = {  # of pages, for screen readers
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<summary aria-label="Toggle hidden content">': "<summary>",
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    # long lines scroll, also by keyboard
    '<div class="highlight"><pre>': '<div class="highlight"><pre tabindex="0">',
    '<aside class="toc-drawer': '<aside aria-label="On this page" class="toc-drawer',
}
# with pages, or files they link to
FOLDERS = ("tutorials", "figures", "benchmarks", "tinyprop", "tests", "tools")
PYODIDE = (
    "pyodide.mjs",
    "pyodide.asm.js",
    "pyodide.asm.wasm",
    "pyodide-lock.json",
    "python_stdlib.zip",
)
# initial weights that are shown without a normaliser
INITS = {
    "glorot": "no normaliser, weights of Glorot and Bengio (2010)",
    "he": "no normaliser, weights of He et al. (2015)",
    "orthogonal": "no normaliser, orthogonal weights of He's scale (Saxe et al., 2014)",
}


def stack(norm: str, init: str | None = None, activation: str = "relu", **affine: float) -> Stack:
    """A small network."""
    return Stack(norm, activation, 2, 16, 4, False, init=init, **affine)


def choices() -> dict[str, dict[str, Any]]:
    """What the page offers as a normaliser, and what it says about each."""
    found = {}
    for init, note in INITS.items():
        found[f"none/{init}"] = {"norm": "none", "init": init, "note": note}
    for name, entry in tp.nn.normalizers.items():
        if name != "none" and takes_vectors(name):
            found[name] = {"norm": name, "init": None, "note": entry.note}
    for name, choice in found.items():
        small = stack(choice["norm"], choice["init"])
        choice["label"] = name
        choice["overBatch"] = small.over_batch
        choice["hasStatistics"] = small.statistics is not None
    return found


def takes_vectors(norm: str) -> bool:
    """Whether a normaliser is for fully connected layers, too."""
    try:
        stack(norm).network()(tp.ones(4, 16))
    except tp.ShapeError:
        return False
    return True


def affine(choice: dict[str, Any], activation: str) -> dict[str, float]:
    """gamma and beta that a network starts with, if it has them."""
    small = stack(choice["norm"], choice["init"], activation)
    starts = dict(zip(("gamma", "beta"), small.affine, strict=True))
    return {name: start for name, start in starts.items() if small.has(name)}


def install() -> None:
    """What the site serves of others, from npm."""
    subprocess.run(
        ["npm", "ci", "--silent", "--no-audit", "--ignore-scripts", "--prefix", DOCS], check=True
    )


def laboratory(place: Path) -> None:
    """The page, and what it loads: its own files with tinyprop's wheel, and Pyodide with NumPy."""
    out = place / "lab-edition"
    skipped = shutil.ignore_patterns("__pycache__", "start.js")
    shutil.copytree(DOCS / "lab", out, ignore=skipped)
    shutil.move(out / "index.html", place)
    modules = [path.name for path in sorted(out.glob("*.py"))]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", out, ROOT], check=True)
    (wheel,) = out.glob("tinyprop-*.whl")
    write(out / "files.json", {"wheel": wheel.name, "modules": modules})
    pyodide(place / "pyodide-edition")
    norms = choices()
    starts = {
        name: {activation: affine(choice, activation) for activation in tp.activations}
        for name, choice in norms.items()
    }
    write(
        out / "settings.json",
        {"norms": norms, "activations": list(tp.activations), "affine": starts, "first": first()},
    )


def pyodide(out: Path) -> None:
    """Python for the browser, with NumPy, and what starts it."""
    out.mkdir()
    for name in PYODIDE:
        shutil.copy(MODULES / "pyodide" / name, out)
    (numpy,) = (MODULES / "@emscripten-forge" / "numpy" / "pkg").glob("numpy-*.tar.gz")
    shutil.copy(numpy, out / "numpy.tar.gz")
    shutil.copy(DOCS / "lab" / "start.js", out)


def first() -> dict[str, Any]:
    """The setting that the page starts with, and its figures, which are there before Python is."""
    setting = {
        "norm": "normprop",
        "activation": "relu",
        "gamma": None,
        "beta": None,
        "depth": 20,
        "width": 100,
        "batch": 64,
        "residual": False,
    }
    place = {"layer": 20, "seed": 0, "networks": 5}
    panels = dict(lab.panels(Stack(**setting), **place))  # of bands, the last
    more = {"formula": "x * sigmoid(x)"}
    return {"setting": setting | place | more, "panels": list(panels.items())}


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, default=lambda value: value.tolist()) + "\n")


# -- the pages


def pages(out: Path) -> None:
    """Lay out the sources as they are in the repository, with the pages of docs/ in front, and run
    Sphinx on them."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        skipped = shutil.ignore_patterns(
            "__pycache__",
            "runs",
            "lab",
            "live",
            "standins",
            "wheels",
            "node_modules",
            "package*.json",
            "*.mjs",
            "build.py",
            "bundle.py",
            "editions.py",
            "figure.py",
            "functions.py",
            "maps.py",
            "live.py",
        )
        shutil.copytree(DOCS, source, ignore=skipped, dirs_exist_ok=True)
        # other pages link to these, and they link to them, by their places in the repository
        (source / "docs").mkdir()
        for name in ("architecture.md", "checks.md", "fuzzing.md", "maps.md", "own.md", "own"):
            shutil.move(source / name, source / "docs")
        for name in FOLDERS:
            shutil.copytree(ROOT / name, source / name, ignore=skipped)
        for path in [*ROOT.glob("*.md"), ROOT / "LICENSE", ROOT / "CITATION.cff"]:
            shutil.copy(path, source)
        shutil.copy(MODULES / "mathjax" / "es5" / "tex-svg.js", source / "static" / "mathjax.js")
        gallery(source)
        with (source / "api" / "functions.md").open("a") as page:
            page.write(functions.table())
        for name in ("tutorials", "figures", "benchmarks"):
            contents(source / name)
        for path in [
            *source.glob("*.md"),
            *source.glob("*/*.md"),
            *source.glob("tutorials/**/*.ipynb"),
        ]:
            path.write_text(relinked(path))
        sphinx = [
            sys.executable,
            "-m",
            "sphinx",
            "--quiet",
            "--fail-on-warning",
            "--keep-going",
            "-j",
            "auto",
        ]
        subprocess.run([*sphinx, "-d", source / ".doctrees", source, out], check=True)
    for path in out.rglob("*.html"):
        path.write_text(accessible(path.read_text()))


def contents(folder: Path) -> None:
    """Put the pages of a folder into the table of contents, below its README. Solutions are found
    from their lessons only."""
    found = [*folder.glob("*.ipynb"), *folder.glob("*.md")]
    for path in folder.glob("solutions/*.ipynb"):
        notebook = json.loads(path.read_text())
        notebook["metadata"]["orphan"] = True
        path.write_text(json.dumps(notebook))
    names = [
        str(path.relative_to(folder).with_suffix(""))
        for path in sorted(found)
        if path.stem != "README"
    ]
    with (folder / "README.md").open("a") as readme:
        readme.write("\n".join(["", "```{toctree}", ":hidden:", "", *names, "```", ""]))


def relinked(path: Path) -> str:
    """The text of a page, whose links to the laboratory are those of the site, without links to
    folders, and with the descriptions of its figures."""

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if laboratory := re.fullmatch(r"((?:\.\./)*)(?:docs/)?(lab/index\.html.*)", target):
            return f"<a href='{laboratory[1]}{laboratory[2]}'>{text}</a>"
        return text if (path.parent / target).is_dir() else match[0]

    def image(match: re.Match[str]) -> str:
        file = path.parent / match[1]
        is_ours = file.suffix == ".png" and file.is_file()
        return f"![{description_in(file)}]({match[1]})" if is_ours else match[0]

    text = re.sub(r"!\[[^\]]+\]\(([^)\s]+)\)", image, path.read_text())
    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", link, text)


def gallery(source: Path) -> None:
    """A page of all figures, and of the first one of each lesson."""
    images = source / "static" / "gallery"
    images.mkdir()
    shown = []  # link, file, title, description
    for notebook in sorted(source.glob("tutorials/*.ipynb")):
        cells = json.loads(notebook.read_text())["cells"]
        title = "".join(cells[0]["source"]).partition("\n")[0].lstrip("# ")
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        for output in outputs:
            figure = "".join(output.get("data", {}).get(SVG, ""))
            if "data-columns" in figure:  # not a graph of `tp.draw`
                (images / f"{notebook.stem}.svg").write_text(figure)
                description = output["metadata"][SVG]["alt"]
                page = f"tutorials/{notebook.stem}.html"
                shown.append((page, f"{notebook.stem}.svg", title, description))
                break
    for path in sorted([*source.glob("figures/*.png"), *source.glob("figures/*.gif")]):
        shutil.copy(path, images)
        title = path.stem.replace("_", " ").replace("-", " ").capitalize()
        page = f"_static/gallery/{path.name}"
        shown.append((page, path.name, title, description_in(path)))
    items = [
        f'<figure><a href="{link}"><img src="_static/gallery/{name}" alt="{html.escape(words)}" '
        f'loading="lazy"></a><figcaption>{html.escape(title)}</figcaption></figure>'
        for link, name, title, words in shown
    ]
    head = (
        "# Gallery\n\nThe first figure of each lesson, and those of the commands. Each leads to "
        "its source.\n\n"
    )
    (source / "gallery.md").write_text(
        "\n".join([head + '<div class="gallery">', *items, "</div>", ""])
    )


def description_in(path: Path) -> str:
    """What a figure shows in words: `report.plots.save` has written it into the file."""
    with Image.open(path) as image:
        words = image.info.get("Description") or image.info.get("comment", b"").decode()
    if not words:
        sys.exit(
            f"got: {path}, without a description. rule: every figure of the site has one, for "
            "those who cannot see it. try: draw it again; figures/README.md says how"
        )
    return words


def accessible(text: str) -> str:
    """A page of Sphinx, its theme and myst-nb, with what they leave out for those who listen to
    it."""
    for short, whole in REPAIRS.items():
        text = text.replace(short, whole)
    return text


# -- what must hold of the result


class Page(HTMLParser):
    """The anchors of a page, and what it links to."""

    def __init__(self, path: Path):
        super().__init__()
        self.anchors, self.targets = {""}, set[str]()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.targets.add(value)


def broken_links(site: Path) -> list[str]:
    """Links to files or anchors that are not there. What is behind the # of the laboratory is a
    setting."""
    found = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    broken = []
    for path, page in found.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = found[file].anchors if file in found else {""}
            if not file.is_file() or (
                file.parent.name != "lab" and unquote(parts.fragment) not in anchors
            ):
                broken.append(f"{path.relative_to(site.resolve())}: {target}")
    return sorted(broken)


def main() -> None:
    shutil.rmtree(SITE, ignore_errors=True)
    install()
    pages(SITE)
    laboratory(SITE / "lab")
    live.build(SITE)
    editions.stamp(SITE)
    if broken := broken_links(SITE):
        sys.exit("\n".join([f"{len(broken)} broken links", *broken]))
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        sys.exit(f"the site has {size:,} bytes, more than {MOST_BYTES:,}")
    print(
        f"{SITE}: {len(list(SITE.rglob('*.html')))} pages, {size / 1e6:.0f} MB; python -m "
        f"http.server -d {SITE}"
    )


if __name__ == "__main__":
    main()
