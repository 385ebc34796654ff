"""Old names of modules that moved: `import tinyprop.plots` still works for one version, and warns.

It gives a module of the old name whose attributes are those of the new module.
"""

import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGE = __name__.split(".")[0]

MOVED = {
    "arguments": "report.arguments",
    "certify": "instruments.certify",
    "cluster": "parallel.executors",
    "compare": "instruments.compare",
    "creation": "engine.creation",
    "demo": "instruments.demo",
    "depth": "instruments.depth",
    "derivatives": "functional.derivatives",
    "errors": "engine.errors",
    "estimate": "report.estimate",
    "files": "report.files",
    "info": "report.environment",
    "nn.normalization": "nn.normprop",
    "paper": "verify.paper",
    "plots": "report.plots",
    "random": "engine.random",
    "ranks": "parallel.ranks",
    "saving": "report.saving",
    "special": "functional.special",
    "stacks": "theory.stacks",
    "table": "report.table",
    "theory.instruments": "instruments.probes",
    "threads": "engine.threads",
    "windows": "functional.windows",
}


class OldNames(MetaPathFinder, Loader):
    """Finds and loads modules by their old names. Python asks it last: if there is no such file."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, old = fullname.partition(".")
        is_old_name = package == PACKAGE and old in MOVED
        return ModuleSpec(fullname, self) if is_old_name else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__.removeprefix(f"{PACKAGE}.")
        new = f"{PACKAGE}.{MOVED[old]}"
        warnings.warn(
            f"{module.__name__} is now {new}; the next version removes the old name",
            DeprecationWarning,
            stacklevel=2,
        )
        vars(module)["__getattr__"] = partial(getattr, import_module(new))


def register() -> None:
    """Make old names importable."""
    is_registered = any(isinstance(finder, OldNames) for finder in sys.meta_path)
    if not is_registered:
        sys.meta_path.append(OldNames())
