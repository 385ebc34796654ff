"""Build the sdist and, from it, the wheel. Run the README and the files of docs/own in an
environment with only the wheel, and the quick tests of the unpacked sdist with the tools of this
one. Archives that pass go to dist/. With --bare, the tests run without tinyprop/kernels/."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"```(python|text)\n(.*?)```", re.S)


def run(*command: str | Path, cwd: Path, **environment: str) -> None:
    print("$", *command, flush=True)
    subprocess.run(command, cwd=cwd, env=os.environ | environment, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
        (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")

        empty = folder / "empty"
        empty.mkdir()
        venv.create(folder / "wheel", with_pip=True)
        python = (
            folder / "wheel" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        )
        run(
            python,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--quiet",
            wheel,
            cwd=folder,
        )
        fences = FENCE.findall((ROOT / "README.md").read_text())
        (empty / "readme.py").write_text(
            "\n".join(text for kind, text in fences if kind == "python")
        )
        with_overrides = os.environ | {"TINYPROP_PLAIN": "0"}
        printed = subprocess.check_output(
            [python, "readme.py"], cwd=empty, env=with_overrides, text=True
        )
        expected = "".join(text for kind, text in fences if kind == "text")
        assert printed == expected, f"the README says:\n{expected}\nbut prints:\n{printed}"
        for path in sorted((ROOT / "docs" / "own").glob("*.py")):
            shutil.copy(path, empty)
            run(python, path.name, cwd=empty)

        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = (path.parent for path in folder.glob("*/pyproject.toml"))
        if "--bare" in sys.argv[1:]:
            shutil.rmtree(unpacked / "tinyprop" / "kernels")
        quick = ["-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", "-m", "not slow"]
        run(
            sys.executable,
            *quick,
            cwd=unpacked,
            PYTHONPATH=str(unpacked),
            HYPOTHESIS_PROFILE="check",
        )
        dist = ROOT / "dist"
        shutil.rmtree(dist, ignore_errors=True)
        dist.mkdir()
        for archive in (sdist, wheel):
            shutil.copy(archive, dist)
    print("the sdist passes its tests, and every fence of the README runs with the wheel alone")


if __name__ == "__main__":
    main()
