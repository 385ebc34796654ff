"""The commands, as a user calls them."""

import pytest

from tinyprop.cli import main


def test_demo_learns_and_leaves_a_picture(tmp_path, capsys):
    assert main(["demo", "--steps", "150", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert float(said.split("%")[0]) > 95
    assert (tmp_path / "spirals.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path / "spirals.png") in said
    assert [p.name for p in tmp_path.iterdir()] == ["spirals.png"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["demo", "--steps", "1", "--out", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["dance"], ["demo", "--steps", "many"]])
def test_bad_arguments_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: tinyprop" in capsys.readouterr().err
