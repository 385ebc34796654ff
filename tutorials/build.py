"""Make the notebooks from the lessons and their solutions: python tutorials/build.py, or only some:
build.py 03 E1.

A notebook holds nothing that changes from one run to the next: no times, no versions, no random
ids. Data of the user are out of sight, so that everyone gets the notebook of someone who has just
cloned the repository. A cell that draws is tagged hide-input in its source, and folded in Jupyter
and on the site. The description that a figure is shown with becomes its alternative text."""

import os
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

from tinyprop.report.saving import write_whole

HERE = Path(__file__).parent
LESSONS = "[0-9E][0-9]*_*.py"  # 08b, too
SOURCES = [*sorted(HERE.glob(LESSONS)), *sorted((HERE / "solutions").glob(LESSONS))]
FOLDED = "hide-input"  # as myst-nb knows it
TAKES = re.compile(r"takes-\d+s")  # in a page, about
PYTHON = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def cells_of(source: Path) -> Any:
    """A lesson as a notebook that has not run."""
    notebook = jupytext.read(source, fmt="py:percent")
    for i, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{i:02}", folded(cell)
    return notebook


def folded(cell: Any) -> dict[str, Any]:
    """What tells the site and Jupyter to fold a cell, and the site how long it takes, if its source
    has these tags."""
    tags = [tag for tag in cell.metadata.get("tags", []) if tag == FOLDED or TAKES.fullmatch(tag)]
    metadata: dict[str, Any] = {"tags": tags} if tags else {}
    if FOLDED in tags:
        metadata["jupyter"] = {"source_hidden": True}
    return metadata


def described(cell: Any) -> dict[str, Any]:
    """The description of a cell's figure, where the site looks for it."""
    for output in cell.get("outputs", []):
        for facts in output.get("metadata", {}).values():
            if "alt" in facts:
                return {"mystnb": {"image": {"alt": facts["alt"]}}}
    return {}


def executed(source: Path) -> Any:
    notebook = cells_of(source)
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(source.parent)}},
    ).execute()
    notebook.metadata, notebook.nbformat, notebook.nbformat_minor = PYTHON, 4, 5
    for cell in notebook.cells:
        cell.metadata = folded(cell) | described(cell)
    return notebook


def main(wanted: list[str]) -> None:
    chosen = [source for source in SOURCES if not wanted or source.stem.partition("_")[0] in wanted]
    with TemporaryDirectory() as empty:
        os.environ |= {"XDG_CACHE_HOME": empty}
        os.environ.pop("TINYPROP_DATA", None)
        for source in tqdm(chosen, unit="notebook", disable=None):
            text = nbformat.writes(executed(source)) + "\n"
            write_whole(source.with_suffix(".ipynb"), text.encode())


if __name__ == "__main__":
    main(sys.argv[1:])
