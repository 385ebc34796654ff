"""`file.py:name`: the object of a user's file, and where it came from."""

import importlib

import pytest

import tinyprop as tp
from tinyprop.engine.loading import fingerprint, from_file, is_file_reference, source_of

FILE = """
count = [0]
count[0] += 1

def double(u):
    return 2.0 * u
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_the_object_of_a_file(path, monkeypatch):
    assert from_file(f"{path}:double")(3.0) == 6.0
    monkeypatch.chdir(path.parent)
    assert from_file("mine.py:double") is from_file(f"{path}:double")


def test_a_file_is_executed_once_for_each_content(path):
    first = from_file(f"{path}:count")
    assert from_file(f"{path}:count") is first
    path.write_text(FILE.replace("2.0", "3.0"))
    assert from_file(f"{path}:double")(3.0) == 9.0


def test_a_file_that_was_imported_is_not_executed_again(path, monkeypatch):
    monkeypatch.syspath_prepend(path.parent)
    path.rename(path.with_name("mine_as_a_module.py"))
    module = importlib.import_module("mine_as_a_module")
    assert from_file(f"{module.__file__}:double") is module.double


def test_it_is_known_where_an_object_comes_from(path):
    source = source_of(from_file(f"{path}:double"))
    assert str(source) == f"{path.resolve()}:double#{fingerprint(path)}"
    assert from_file(str(source)) is from_file(f"{path}:double")
    path.write_text(FILE + "# changed")
    assert source_of(from_file(f"{path}:double")).fingerprint != source.fingerprint
    with pytest.raises(ValueError, match=r"content has changed[\s\S]*the file as it was"):
        from_file(str(source))


def test_what_no_file_defines_has_no_source():
    assert source_of(tp.functional.relu) is None  # ours
    assert source_of(abs) is None
    assert source_of(lambda u: u) is None


@pytest.mark.parametrize(
    "text", ["relu", "mine.txt:double", "mine.py:", "mine.py:a b", "mine.py:1", ":"]
)
def test_what_is_no_reference_to_a_file(text):
    with pytest.raises(ValueError, match=r"got:[\s\S]*rule:[\s\S]*my_file.py:my_name"):
        from_file(text)


def test_a_reference_is_told_from_a_name():
    assert is_file_reference("a/b.py:c")
    assert not is_file_reference("relu")
    assert not is_file_reference(3)


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is none of this name"):
        from_file(f"{tmp_path}/missing.py:double")


def test_a_name_that_is_missing(path):
    with pytest.raises(tp.UnknownNameError, match=r"defines count, double\ntry:  'double'"):
        from_file(f"{path}:doubel")


def test_a_file_that_cannot_be_imported(path):
    path.write_text("1 / 0")
    with pytest.raises(ImportError, match="which raises ZeroDivisionError"):
        from_file(f"{path}:double")
    path.write_text("raise SystemExit(0)")
    with pytest.raises(ImportError, match=r"which raises SystemExit: 0[\s\S]*if __name__"):
        from_file(f"{path}:double")


def test_a_module_beside_the_file(path):
    """Its folder may be put on the path; it is not by itself, as two folders may have a helper."""
    (path.parent / "my_helper_of_a_test.py").write_text("")
    path.write_text("import my_helper_of_a_test")
    with pytest.raises(ImportError, match=f"try:  PYTHONPATH={path.parent}"):
        from_file(f"{path}:double")
    path.write_text("import my_helper_of_no_test")
    with pytest.raises(ImportError, match=f"try:  python {path}"):
        from_file(f"{path}:double")
