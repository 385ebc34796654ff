"""The figures that matplotlib draws with the stand-ins of docs/standins, as in the page, and with
its compiled modules, as here."""

import base64
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from tests.helpers import FULL

ROOT = Path(__file__).parent.parent
COURSE = ROOT / "tutorials"
LESSONS = sorted(COURSE.glob("[0-9E][0-9]*_*.py"))
QUICK = ("02_network", "09_other_normalizers", "E1_convolution")  # contours, patches, images
TOLERANCE = 0.05  # pixels
COMPILED = ("matplotlib._path", "matplotlib.ft2font", "matplotlib._image")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
# images: a filter of four pixels stands for all but the nearest pixel
IMAGES = 0.05  # mean difference, of 1

DRAW = """
import logging, runpy, sys, warnings
import matplotlib
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
import lesson

# all points are compared; a path is simplified, or not, as it was told when it was made
matplotlib.rcParams["path.simplify"] = False
shown = 0
def show(figure, description=""):
    global shown
    shown += 1
    if hasattr(figure, "savefig"):
        with matplotlib.rc_context({"svg.hashsalt": "fixed"}):
            figure.savefig(f"{sys.argv[2]}/{shown:02}.svg", format="svg", metadata={"Date": None})

lesson.show = show
runpy.run_path(sys.argv[1], run_name="__main__")
for name in sys.argv[3:]:
    print(name, sys.modules[name].__file__, file=sys.stderr)
"""
EVERYTHING = """
import numpy as np
import lesson

figure, (a, b, c, d) = lesson.panels(2, 8, 6, rows=2)
x = np.linspace(0.1, 5, 50)
y = np.sin(x)
y[20] = np.nan
a.plot(x, y, label=r"$\\\\sin(\\\\gamma x^2), \\\\frac{a_1}{\\\\sqrt{b}}$")
a.plot(x, np.cos(x) * 30, "o-", label="difference, fluffy AVATAR_")
a.legend()
a.set(title="Affinity of fields: \\u2212\\u03b3", xlabel="$x_1$", ylabel="y", ylim=(-1, 1))
b.loglog(x, x**2)
b.hist(np.random.default_rng(0).standard_normal(100) + 3)
b.fill_between(x, x, x**2, alpha=0.2)
b.annotate("Here", (1, 1), (2, 20), arrowprops={"arrowstyle": "->"})
b.errorbar(x, x, 0.1 * x)
g = np.linspace(-2, 2, 30)
X, Y = np.meshgrid(g, g)
c.contourf(X, Y, X * Y + np.sin(3 * X), levels=[-1, 0, 0.5, 2])
c.contour(X, Y, X * Y, levels=[-1, 0.01, 1])
c.scatter(g, g**2)
c.axhline(0, 0.2, 0.9, linestyle="--")
d.imshow(np.arange(12).reshape(3, 4))
d.step(g, g)
d.barh([1, 2], [0.5, 1])
lesson.show(figure)
"""


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    """The folder of packages that the page gets, before it is compiled."""
    folder = tmp_path_factory.mktemp("bundle") / "bundle"
    command = "import sys, bundle, pathlib; bundle.lay_out(pathlib.Path(sys.argv[1]))"
    path = os.pathsep.join([str(ROOT / "docs"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", command, str(folder)], env=environment, check=True)
    return folder / "packages"


def drawn(script, folder, *first_on_path):
    """The figures of a lesson as SVG trees."""
    folder.mkdir()
    path = os.pathsep.join(map(str, [*first_on_path, ROOT, COURSE]))
    environment = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    environment["MPLCONFIGDIR"] = str(folder / "config")
    done = subprocess.run(
        [sys.executable, "-c", DRAW, str(script), str(folder), *COMPILED],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    for name in COMPILED:
        (file,) = re.findall(rf"^{re.escape(name)} (.+)$", done.stderr, re.MULTILINE)
        assert (Path(file).suffix == ".py") == bool(first_on_path), "whose module it is"
    return [ElementTree.parse(file).getroot() for file in sorted(folder.glob("*.svg"))]


def words(text):
    """A text without its numbers, and its numbers. Names of hashes are left out: they are those of
    numbers with all their digits."""
    text = re.sub(r"#[\w-]+", "#", text)
    return NUMBER.sub("0", text), np.array([float(number) for number in NUMBER.findall(text)])


def pieces(tree):
    """(place, words, numbers) of each attribute and text of a figure."""
    for element in tree.iter():
        tag = element.tag.partition("}")[2]
        for name, value in sorted(element.attrib.items()):
            if name not in ("id", "{http://www.w3.org/1999/xlink}href") or value.startswith("#D"):
                yield f"{tag} {name}", *words(value)
        if element.text and element.text.strip() and tag != "style":
            yield tag, *words(element.text)


def same_points(a, b):
    """Whether two paths go through the same points, whatever their order: contours begin
    elsewhere."""
    a, b = a.reshape(-1, 2), b.reshape(-1, 2)
    if not len(a) or not len(b):
        return len(a) == len(b)
    distances = np.abs(a[:, None] - b[None]).max(axis=-1)
    return max(distances.min(axis=0).max(), distances.min(axis=1).max()) <= TOLERANCE


def assert_same(ours, theirs):
    ours, theirs = list(pieces(ours)), list(pieces(theirs))
    assert [place for place, *_ in ours] == [place for place, *_ in theirs]
    for (place, words_, numbers), (_, other_words, others) in zip(ours, theirs, strict=True):
        if words_ == other_words:
            assert len(numbers) == len(others)
            if np.abs(numbers - others).max(initial=0) <= TOLERANCE:
                continue
        assert place == "path d", (place, words_, other_words, numbers, others)
        assert same_points(numbers, others), (words_[:200], other_words[:200])


def images(tree):
    """The pixels of the images in a figure, from 0 to 1."""
    for element in tree.iter():
        address = element.get("{http://www.w3.org/1999/xlink}href", "")
        if address.startswith("data:image/png"):
            content = base64.b64decode(address.partition(",")[2])
            yield np.asarray(Image.open(io.BytesIO(content)).convert("RGBA")) / 255


def assert_same_images(ours, theirs):
    for one, other in zip(images(ours), images(theirs), strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).mean() <= IMAGES


def compare(script, bundle, tmp_path):
    ours, theirs = drawn(script, tmp_path / "ours", bundle), drawn(script, tmp_path / "theirs")
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)
        assert_same_images(one, other)
    return ours


def test_a_figure_with_everything(bundle, tmp_path):
    script = tmp_path / "figure.py"
    script.write_text(EVERYTHING.replace("\\\\", "\\"))
    (figure,) = compare(script, bundle, tmp_path)
    assert len(list(pieces(figure))) > 500
    shifted = ElementTree.fromstring(ElementTree.tostring(figure))
    paths = [e for e in shifted.iter() if e.tag.endswith("}path") and "clip-path" in e.attrib]
    paths[0].set("transform", "translate(0.06 0)")
    with pytest.raises(AssertionError):
        assert_same(shifted, figure)
    (pixels,) = images(figure)
    assert pixels.std() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_the_figures_of_a_lesson(lesson, bundle, tmp_path):
    if lesson.stem not in QUICK and not FULL:
        pytest.skip("make full draws the figures of all lessons")
    compare(lesson, bundle, tmp_path)
