"""Every CUDA kernel under oclgrind: no data race, nothing out of bounds, nothing read that nobody
wrote.

The launches are those of the cases in test_overrides.py, recorded on CuPy."""

import re
from collections import Counter

import numpy as np
import pytest

from tinyprop.engine.arrays import to_numpy
from tinyprop.kernels import cuda

from .. import opencl
from ..conftest import needs_overrides, on_a_device
from .cuda_code import SOURCES, kernel_names
from .test_overrides import CASES

pytestmark = [
    *on_a_device,
    pytest.mark.slow,
    needs_overrides,
    pytest.mark.skipif(opencl.missing() is not None, reason=opencl.missing() or ""),
]
# uneven.cu has parameters that OpenCL does not take: bools, and pointers to them
UNTRANSLATED = ("uneven",)
TEXTS = {path.stem: path.read_text() for path in SOURCES if path.stem not in UNTRANSLATED}
BARRIERS = [
    (file, found.start())
    for file, text in TEXTS.items()
    for found in re.finditer(r"__syncthreads\(\);", text)
]
MOST = 1  # launches of a kernel that are replayed, for each of its options


class Recorder:
    """Takes the place of `cuda._launch`: launches, and records what was launched."""

    def __init__(self, launch, cupy):
        self.launch = launch
        self.cupy = cupy
        self.launches = []
        self.seen = Counter()

    def empty(self, *args, **options):
        """As cupy.empty, but recognizable until somebody writes: all bits are set."""
        out = self.cupy.ndarray(*args, **options)
        out.reshape(-1).view("uint8")[...] = 255
        return out

    def empty_like_dtype(self, shape, like):
        """In the place of `cuda._empty`."""
        return self.empty(shape, like.dtype)

    def __call__(self, kernel, dtype, grid, *arguments, options=()):
        arrays = [a for a in arguments if isinstance(a, self.cupy.ndarray)]
        table = self.table(arguments)
        call = kernel, tuple(options), len(table)
        self.seen[call] += dtype == "float32"
        enough = self.seen[call] > MOST
        too_large = len(table) > 16  # these take minutes
        is_untranslated = kernel.startswith(UNTRANSLATED)
        if dtype != "float32" or enough or too_large or is_untranslated:
            return self.launch(kernel, dtype, grid, *arguments, options=options)
        blocks = grid[0] if isinstance(grid, tuple) else -(-grid // cuda.THREADS)
        hosts = {a.data.ptr: to_numpy(a).copy() for a in arrays}
        passed = [self.passed(a, hosts) for a in arguments]
        fresh = {i for i, a in enumerate(passed) if self.is_fresh(a)}
        before = {address: to_numpy(a) for address, a in table.items()}
        everything = (*cuda.OPTIONS, *options)
        found = opencl.Launch(kernel, everything, blocks, cuda.THREADS, passed, fresh, before)
        self.launch(kernel, dtype, grid, *arguments, options=options)
        found.after = [to_numpy(a) for a in [*arrays, *table.values()]]
        self.launches.append(found)

    def is_fresh(self, argument):
        """Whether it is memory that nobody has written."""
        is_array = isinstance(argument, np.ndarray) and argument.ndim > 0
        return is_array and bool((argument.view("u1") == 255).all())

    def passed(self, argument, hosts):
        if isinstance(argument, self.cupy.ndarray):
            return hosts[argument.data.ptr]
        if isinstance(argument, np.void):
            return argument.tobytes()
        kind = {int: np.int64, float: np.float32}.get(type(argument))
        return kind(argument) if kind else argument

    def table(self, arguments):
        """The arrays whose addresses are in the table of `update`, by address."""
        size = cuda.TABLE * 6 * 8
        structs = [a for a in arguments if isinstance(a, np.void) and a.nbytes == size]
        if not structs:
            return {}
        arrays = {}
        for row in np.frombuffer(structs[0].tobytes(), "int64").reshape(cuda.TABLE, 6).tolist():
            *addresses, count, _ = row
            for address in addresses:
                if address:
                    arrays[address] = self.array_at(address, count)
        return arrays

    def array_at(self, address, count):
        memory = self.cupy.cuda.UnownedMemory(address, 4 * count, self)
        pointer = self.cupy.cuda.MemoryPointer(memory, 0)
        return self.cupy.ndarray((count,), "float32", pointer)


@pytest.fixture(scope="module")
def launches():
    import cupy

    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(cuda._launch, cupy)
        patch.setattr(cuda, "_launch", recorder)
        patch.setattr(cuda, "TABLE", 64)
        patch.setattr(cupy, "empty", recorder.empty)
        patch.setattr(cuda, "_empty", recorder.empty_like_dtype)
        for name, programs in CASES.items():
            ours = name.startswith(("cuda.", "tiles.")) and name != "cuda.in_memory_order"
            for program in programs if ours else ():
                program("cupy", "float32")
    return recorder.launches


def test_every_kernel_is_launched(launches):
    every = {f"{file}.{name}" for file, text in TEXTS.items() for name in kernel_names(text)}
    assert {launch.kernel for launch in launches} == every


def test_kernels_have_no_races_and_stay_in_bounds(launches, tmp_path):
    log, results = opencl.errors(launches, TEXTS, tmp_path)
    assert not log
    for launch, after in zip(launches, results, strict=True):
        # it gets views, of which only the elements are copied here
        if launch.kernel == "tiles.map_tiles":
            continue
        for got, expected in zip(after, launch.after, strict=True):
            np.testing.assert_allclose(
                got, expected.reshape(got.shape), 1e-4, 1e-5, err_msg=launch.kernel
            )


@pytest.mark.parametrize(("file", "position"), BARRIERS, ids=lambda value: str(value))
def test_a_removed_barrier_is_noticed(launches, file, position, tmp_path):
    text = TEXTS[file][:position] + TEXTS[file][position:].replace("__syncthreads();", ";", 1)
    log, _ = opencl.errors(
        [n for n in launches if n.kernel.startswith(file)], {file: text}, tmp_path
    )
    assert "data race" in log or "Uninitialized" in log


@pytest.mark.parametrize(
    ("file", "right", "wrong", "report"),
    [
        ("channels", "first + m.strip : m.rows;", "first + m.strip : m.rows + 1;", "Invalid"),
        (
            "rows",
            "all[threadIdx.x] = mine;",
            "if (threadIdx.x < 8) all[threadIdx.x] = mine;",
            "ninitialized",
        ),
    ],
)
def test_reads_that_are_wrong_are_noticed(launches, file, right, wrong, report, tmp_path):
    assert right in TEXTS[file]
    changed = {file: TEXTS[file].replace(right, wrong)}
    log, _ = opencl.errors(
        [n for n in launches if n.kernel.startswith(file)][:2], changed, tmp_path
    )
    assert report in log
