"""Lessons that run in their pages: what the site gets besides what Sphinx has built.

Sphinx's pages stay as they are for readers without JavaScript, but for the output of a cell with a
prediction: it moves into a file of its own, which a script fetches when there is a guess."""

import json
import re
import shutil
import tempfile
import zipfile
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import bundle
import figure
from bs4 import BeautifulSoup
from editions import digest

import tinyprop as tp

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MODULES = DOCS / "node_modules"
EDITOR = ("commands", "lang-python", "language", "state", "view")
NAME = "live-edition"  # docs/editions.py puts a hash there
QUESTION = re.compile(r'^QUESTION = "(.*)"$', re.MULTILINE)
IMAGE = re.compile(r'<img alt="(?P<words>[^"]*)" src="(?P<file>[^"]*_images/[^"]*\.svg)"[^>]*>')
REMARK = (
    "This lesson starts threads, which Python in a page does not have. Cells that need them keep "
    "what they printed when this page was built. To run all of them, download the lesson."
)


def build(site: Path) -> None:
    place = site / "live"
    out = place / NAME
    names = ("editor.js", "live.js", "live.css", "page.py", "worker.js")
    out.mkdir(parents=True)
    for name in names:
        shutil.copy(DOCS / "live" / name, out)
    shutil.copy(DOCS / "lab" / "offline.js", out)
    shutil.copy(DOCS / "figure.py", out)
    imports = copy_editor(out / "modules")
    with tempfile.TemporaryDirectory() as folder:
        (numpy,) = (MODULES / "@emscripten-forge" / "numpy" / "pkg").glob("numpy-*.tar.gz")
        bundle.lay_out(Path(folder))
        packed = place / "bundle.zip"
        bundle.build(Path(folder), packed, numpy)
    packed = packed.rename(place / f"bundle-{digest([packed], place)}.zip")
    (out / "files.json").write_text(json.dumps({"bundle": f"../{packed.name}"}) + "\n")
    for path in (site / "tutorials").rglob("*.html"):
        path.write_text(with_figures(path))
    for lesson in lessons():
        page(site, lesson, imports)


def lessons() -> list[Path]:
    return sorted((ROOT / "tutorials").glob("[0-9E][0-9]*_*.ipynb"))


# -- the editor


def copy_editor(target: Path) -> dict[str, str]:
    """The one module of each package that the editor needs, and where a page in tutorials/ finds
    it."""
    target.mkdir()
    imports, wanted = {}, [f"@codemirror/{name}" for name in EDITOR] + ["@lezer/highlight"]
    while wanted:
        name = wanted.pop()
        if name in imports:
            continue
        package = json.loads((MODULES / name / "package.json").read_text())
        exports = package.get("exports", {})
        exports = exports.get(".", exports)
        module = package.get("module") or exports["import"]
        file = name.replace("@", "").replace("/", "-") + ".js"
        shutil.copy(MODULES / name / module, target / file)
        imports[name] = f"../live/{NAME}/modules/{file}"
        wanted += package.get("dependencies", {})
    return dict(sorted(imports.items()))


# -- pages


def page(site: Path, lesson: Path, imports: dict[str, str]) -> None:
    """Add the script and what it must know to the page of a lesson."""
    path = site / "tutorials" / f"{lesson.stem}.html"
    soup = BeautifulSoup(path.read_text(), "html.parser")
    sources = code(lesson)
    boxes = soup.select("article div.cell")
    if len(boxes) != len(sources):
        raise SystemExit(f"{path}: {len(boxes)} cells, but {len(sources)} in {lesson.name}")
    locks = {}
    for number, question in questions(sources).items():
        answer = f"{lesson.stem}-answer-{number}.html"
        hide(soup, boxes[number], site / "tutorials" / answer)
        locks[number] = {"question": question, "answer": answer}
    archive = f"{lesson.stem}.zip"
    download(site / "tutorials" / archive, lesson, list(locks))
    settings = {
        "lesson": lesson.stem,
        "version": tp.__version__,
        "locks": locks,
    }
    bar = f'<div class="live-bar" id="live-bar"><a href="{archive}" download>Download</a></div>'
    if any("ThreadPoolExecutor" in source for source in sources):
        bar += f'<p class="live-remark">{REMARK}</p>'
    soup.select_one("article h1").insert_after(BeautifulSoup(bar, "html.parser"))
    head = [
        f'<link rel="stylesheet" href="../live/{NAME}/live.css">',
        f'<script type="importmap">{json.dumps({"imports": imports})}</script>',
        f'<script type="application/json" id="live">{in_script(settings)}</script>',
        f'<script type="module" src="../live/{NAME}/live.js"></script>',
    ]
    soup.head.append(BeautifulSoup("\n".join(head), "html.parser"))
    path.write_text(str(soup))


def with_figures(path: Path) -> str:
    """The text of a page, with the figures of its cells in it, so that they have its colors."""

    def inside(image: re.Match[str]) -> str:
        svg = (path.parent / unquote(image["file"])).read_text()
        name = f"figure-{image.start()}"  # unlike all others of the page
        return figure.in_page(svg, name, unescape(image["words"]))

    return IMAGE.sub(inside, path.read_text())


def in_script(settings: dict[str, Any]) -> str:
    return json.dumps(settings).replace("</", "<\\/")


def code(lesson: Path) -> list[str]:
    """The sources of the cells of code."""
    cells = json.loads(lesson.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def questions(sources: list[str]) -> dict[int, str]:
    """The cells that reveal the answer to a prediction, and its question."""
    found, question = {}, ""
    for number, source in enumerate(sources):
        if asked := QUESTION.findall(source):
            question = asked[-1]
        if re.search(r"^\s*reveal\(", source, re.MULTILINE):
            found[number] = question
    return found


def hide(soup: BeautifulSoup, box: Any, target: Path) -> None:
    """Move what a cell has printed into a page of its own."""
    output = box.select_one(".cell_output")
    title = "<meta charset='utf-8'><title>The answer</title>"
    target.write_text(f"<!doctype html>{title}{output.extract() if output else ''}\n")
    link = f'<p class="locked"><a href="{target.name}">The answer to the prediction</a></p>'
    box.append(BeautifulSoup(link, "html.parser"))


def download(target: Path, lesson: Path, locked: list[int]) -> None:
    """The notebook, without the answers to its predictions, and the files that it imports."""
    notebook = json.loads(lesson.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number in locked:
        cells[number] |= {"outputs": [], "execution_count": None}
    folder = Path(lesson.stem)
    readme = (
        f"pip install tinyprop=={tp.__version__} matplotlib threadpoolctl tqdm jupyterlab\n"
        f"jupyter lab tutorials/{lesson.name}\n"
    )
    # by their places in the repository, where they find each other
    files = {path.relative_to(ROOT): path.read_text() for path in bundle.helpers()}
    files[lesson.relative_to(ROOT)] = json.dumps(notebook, indent=1) + "\n"
    if any("Ledger(" in "".join(cell["source"]) for cell in cells):
        files |= {path.relative_to(ROOT): path.read_text() for path in bundle.evidence()}
    files[Path("README.txt")] = readme
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(file((folder / name).as_posix()), text)


def file(name: str) -> zipfile.ZipInfo:
    """A compressed file of an archive that has no date, so that the archive is the same each
    time."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    return info
