"""The course for students, without solutions: `python -m tutorials.release course.zip`.

The archive has the notebooks and what they import. Links to files that are not in it become plain
text. exercises.toml is in it, because `check` needs it: whoever opens it sees what is right."""

import argparse
import io
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

from tinyprop.report.files import write_whole

HERE = Path(__file__).resolve().parent
FOLDER = "tinyprop-course"
HELPERS = ("lesson.py", "checks.py", "exercises.py", "exercises.toml", "projects.py", "given.py")
HELPERS += ("contest.py", "contest.json")
LINK = re.compile(r"(?<!!)\[([^]]*)\]\((?!https?:)([^)#]+)(#[^)]*)?\)")
PICTURE = re.compile(r"!\[([^]]*)\]\((?!https?:)(?!attachment:)([^)]+)\)")
SOLUTIONS = re.compile(r"^Solutions, with derivations:.*?(\n\n|\Z)", re.M | re.S)
COLUMN = re.compile(r"^(\|.*)\|[^|]*\|$", re.M)  # the last column of a table
README = """# A course in normalisation

Install tinyprop from the wheel that your teacher gives you, and jupyterlab (`pip install
tinyprop-*.whl jupyterlab`). Then start `jupyter lab` in this folder and open a notebook. `check`
says what is wrong with an answer, and `hint("1.2")` gives one more hint each time. Hand in the
notebook.

"""


def notebooks() -> list[Path]:
    return sorted(HERE.glob("[0-9E][0-9]*_*.ipynb"))


def for_students(text: str, names: set[str]) -> str:
    """A page without solutions, and without links to what the archive does not have."""
    text = SOLUTIONS.sub("", text)
    text = LINK.sub(lambda link: link[0] if link[2] in names else link[1], text)
    return PICTURE.sub(lambda picture: picture[0] if picture[2] in names else picture[1], text)


def notebook(path: Path, names: set[str]) -> str:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    cells = []
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            text = for_students("".join(cell["source"]), names)
            if not text.strip():
                continue
            cell["source"] = text.splitlines(keepends=True)
        cells.append(cell)
    return json.dumps(content | {"cells": cells}, indent=1, ensure_ascii=False) + "\n"


def contents() -> str:
    """The table of lessons, without its column of solutions."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\|.*?(?=\n\n)", text, re.M | re.S)
    return "\n\n".join(COLUMN.sub(r"\1|", table) for table in tables)


def write_release(path: Path) -> list[str]:
    """Write the archive; the names of its files."""
    names = {lesson.name for lesson in notebooks()} | set(HELPERS)
    files = {"README.md": README + contents() + "\n"}
    for lesson in notebooks():
        files[lesson.name] = notebook(lesson, names)
    for name in HELPERS:
        files[name] = (HERE / name).read_text(encoding="utf-8")

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(files.items()):
            archive.writestr(f"{FOLDER}/{name}", text)
    write_whole(path, packed.getvalue())
    return sorted(files)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tutorials.release",
        description="Write the course for students, without solutions.",
    )
    parser.add_argument("path", type=Path, help="archive to write, such as course.zip")
    path = parser.parse_args(argv).path
    print(f"{path}: {len(write_release(path))} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
