"""What teachers get besides the lessons: exam questions, and the course without solutions."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
COURSE = REPOSITORY / "tutorials"
sys.path.append(str(REPOSITORY))

from tutorials import release  # noqa: E402


def test_the_numbers_of_the_exam_are_those_of_its_code():
    names, said, count = {}, None, 0
    text = (COURSE / "EXAM.md").read_text()
    for kind, code in re.findall(r"```(python|text)\n(.*?)```", text, re.S):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, names)
            said = out.getvalue()
        else:
            assert said == code
            count += 1
    assert count >= 4


def test_the_exam_has_the_points_that_it_says():
    text = (COURSE / "EXAM.md").read_text()
    points = [int(p) for p in re.findall(r"^\*\*\d+\*\* \((\d+), lesson", text, re.M)]
    assert f"{sum(points)} in all" in text
    assert text.count("*Answer.*") == len(points) == 12


def test_the_release_has_no_solutions(tmp_path):
    path = tmp_path / "course.zip"
    assert release.main([str(path)]) == 0
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    lessons = {Path(name).name for name in files if name.endswith(".ipynb")}
    assert lessons == {path.name for path in COURSE.glob("[0-9E][0-9]*_*.ipynb")}
    assert not any("olutions/" in text for text in files.values())
    names = {Path(name).name for name in files}
    for name, text in files.items():
        if name.endswith(".ipynb"):
            cells = json.loads(text)["cells"]
            text = "".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        if name.endswith((".ipynb", ".md")):
            links = re.findall(r"\]\((?!https?:|attachment:|#)([^)#]+)", text)
            assert set(links) <= names, name


def test_the_release_runs_where_it_is_unpacked(tmp_path):
    path = tmp_path / "course.zip"
    release.main([str(path)])
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / release.FOLDER
    assert {"lesson.py", "checks.py", "exercises.py", "README.md"} <= {
        file.name for file in folder.iterdir()
    }
    command = [sys.executable, "-c", "import lesson"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run(command, cwd=folder, env=environment, check=True)
    from tutorials.grade import answers_of, cells_of  # reads what students will hand in

    assert "3.1" in answers_of(cells_of(folder / "03_initialization.ipynb"))
