"""Old names of modules import for one version, with a warning, and CHANGELOG.md lists them."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.helpers import run_python
from tinyprop.engine.moved import MOVED

CHANGELOG = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_name_warns_and_has_what_the_new_one_has(old, new):
    with pytest.warns(DeprecationWarning, match=f"tinyprop.{old} is now tinyprop.{new}"):
        module = import_module(f"tinyprop.{old}")
    current = import_module(f"tinyprop.{new}")
    name = next(name for name in vars(current) if not name.startswith("_"))
    assert getattr(module, name) is getattr(current, name)
    with pytest.raises(AttributeError):
        module.never_there  # noqa: B018


def test_names_can_be_imported_from_an_old_name():
    done = run_python(
        "import warnings; warnings.simplefilter('ignore')\n"
        "from tinyprop.table import Table; print(Table.__module__)"
    )
    assert done.stdout.split() == ["tinyprop.report.table"]


def test_the_changelog_lists_every_move():
    rows = re.findall(r"^\| `tinyprop\.([\w.]+)` \| `tinyprop\.([\w.]+)` \|$", CHANGELOG, re.M)
    assert dict(rows).items() >= MOVED.items()
