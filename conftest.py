"""Where tests find nothing of the user's, and what every doctest may use without importing it."""

import os
from importlib.util import find_spec

import pytest

# before NumPy is imported: several processes share the cores already
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import tinyprop as tp

# `make bare` deletes tinyprop/kernels/: these test that room, list it, or link to its files
collect_ignore = []
if find_spec("tinyprop.kernels") is None:
    collect_ignore += [
        "tests/benchmarks",
        "tests/kernels",
        "tests/test_gpu.py",
        "tests/test_repository.py",
        "tests/test_tutorials.py",
        "tinyprop/engine/overrides.py",
    ]
if find_spec("torch") is None:  # their examples need it
    collect_ignore += ["tinyprop/nn/export.py", "tinyprop/nn/pytorch.py"]


@pytest.fixture(autouse=True, scope="session")
def _no_data_of_the_user(tmp_path_factory):
    """Data sets are looked for in a folder of this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("TINYPROP_DATA", raising=False)
        yield


@pytest.fixture(autouse=True)
def _names_for_doctests(doctest_namespace):
    doctest_namespace.update(tp=tp, F=tp.functional)
