"""Build the sdist and the wheel. Test the sdist from its unpacked archive, and run the README with only the wheel."""

import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"```(python|text)\n(.*?)```", re.S)


def run(*command: str | Path, cwd: Path) -> None:
    print("$", *command, flush=True)
    subprocess.run(command, cwd=cwd, check=True)


def environment(folder: Path, *requirements: str) -> Path:
    """The Python of a new environment with these packages."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    run(python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *requirements, cwd=folder)
    return python


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
        (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")

        empty = folder / "empty"
        empty.mkdir()
        python = environment(folder / "wheel", str(wheel))
        fences = FENCE.findall((ROOT / "README.md").read_text())
        (empty / "readme.py").write_text("\n".join(text for kind, text in fences if kind == "python"))
        printed = subprocess.run([python, "readme.py"], cwd=empty, check=True, capture_output=True, text=True).stdout
        expected = "".join(text for kind, text in fences if kind == "text")
        assert printed == expected, f"the README says:\n{expected}\nbut prints:\n{printed}"

        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = (path.parent for path in folder.glob("*/pyproject.toml"))
        python = environment(folder / "sdist", f"{unpacked}[dev]")
        run(python, "-m", "pytest", "-q", "-n", "auto", "-m", "not slow", cwd=unpacked)
    print("the sdist passes its tests, and every fence of the README runs with the wheel alone")


if __name__ == "__main__":
    main()
