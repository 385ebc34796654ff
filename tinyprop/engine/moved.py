"""Modules that were renamed: `tinyprop.plots` still imports for one version, and warns.

An import of an old name gets a module of that name, whose attributes are those of the new one.
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
    """Finds and loads the old names, once no file of that name was found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, old = fullname.partition(".")
        return ModuleSpec(fullname, self) if package == PACKAGE and old in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__.removeprefix(f"{PACKAGE}.")
        new = f"{PACKAGE}.{MOVED[old]}"
        warnings.warn(
            f"{module.__name__} is now {new}; the old name goes with the next version",
            DeprecationWarning,
            stacklevel=2,
        )
        vars(module)["__getattr__"] = partial(getattr, import_module(new))


def register() -> None:
    """Let old names be found; they are asked for last."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.append(OldNames())
