"""CUDA kernels under oclgrind: a simulator of OpenCL that reports data races, and reads that are
out of bounds or of memory that nobody wrote. clang compiles C++ for OpenCL, after a few words of
CUDA are translated.

Run as a program, under oclgrind, it replays the launches in a pickled file and writes what is in
memory afterwards."""

import os
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

TOOLS = {"oclgrind": "oclgrind", "clang": "clang-14"}
FLAGS = [
    "-cl-std=CLC++",
    "-target",
    "spir64-unknown-unknown",
    "-Xclang",
    "-finclude-default-header",
    "-O1",
    "-g",
    "-w",
]
WORDS = {
    r"template <typename T>\s*|typename T, |, typename T\b|<T>": "",  # elements are floats
    r"<(\w+), T>": r"<\1>",
    r"\bT\b": "float",
    r"\blong long\b": "long",  # 64 bits
    # all pointers are to global memory
    r"\b(const )?(float|long|Pack|Numbers|bool) ?\*": r"__global \1\2 *",
    r"__restrict__|__launch_bounds__\(.*?\)": "",
    r"__device__": "__attribute__((always_inline))",
    # a call that is replaced once it is compiled
    r"__shared__ float (\w+)\[[\w *]+\];": r"__local float* \1 = shared();",
    r"__syncthreads\(\)": "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)",
    r"\bthreadIdx\.x\b": "((unsigned)get_local_id(0))",
    r"\bblockIdx\.x\b": "((unsigned)get_group_id(0))",
    r"__global__": "__kernel",
    r"\b(sqrt|log|cospi|sinpi)f\b": r"\1",  # for all types
    r"if \(live\) n = \*live;": "",  # it points to private or to global memory; here there are none
    # kernels take no structs with pointers by value
    r"const Table (\w+)(.*?\) {)": (
        r"__global const long* words\2 __global const Table& \1 = *(__global const Table*)words;"
    ),
}
CAST = re.compile(r"(%\S+) = addrspacecast ((.+?) addrspace\(1\)\* %\S+) to \3 addrspace\(4\)\*")
POINTER = r"i8(?: addrspace\((\d)\))?\*[^%]*"
MEMCPY = re.compile(rf"@llvm\.memcpy\.p\di8\.p\di8\.i64\(({POINTER})(%\S+ {POINTER}%)")
SHARED = re.compile(r"(%\S+) = call .*? float addrspace\(3\)\* @_Z6sharedv\(\).*")
GENERIC = {
    r"= freeze (\S+) (%\w+)": r"= bitcast \1 \2 to \1",  # oclgrind does not know it
    r".*noalias\.scope\.decl.*\n": "",
    r" addrspace\(4\)": "",
    r"\baddrspacecast\b": "bitcast",
    r"\bp4i8\b": "p0i8",
}  # only private memory is left


def missing():
    """Why kernels cannot be run here, or None."""
    absent = [package for package, tool in TOOLS.items() if shutil.which(tool) is None]
    try:
        import pyopencl  # noqa: F401
    except ImportError:
        absent.append("pyopencl")
    if not absent:
        return None
    return f"needs {' and '.join(absent)}: apt-get install oclgrind clang-14, pip install pyopencl"


@dataclass
class Launch:
    """One launch of a kernel: what it was given, and what the memory that it was given was like
    afterwards."""

    kernel: str  # "file.name"
    options: tuple[str, ...]
    blocks: int
    threads: int
    arguments: list  # arrays, numbers, bytes of structs, None
    fresh: set[int]  # the arguments that nobody wrote before
    # arrays whose addresses are in a struct
    pointers: dict[int, np.ndarray] = field(default_factory=dict)
    after: list = field(default_factory=list)  # the arrays among the arguments, afterwards


def translated(source):
    """A CUDA source as C++ for OpenCL, with kernels for float32."""
    for word, other in WORDS.items():
        source = re.sub(word, other, source)
    return f"__local float* shared();\n{source}"


def in_global_memory(function):
    """LLVM's text of a function in which what a generic pointer to global memory leads to is global
    as well."""
    function = CAST.sub(r"\1 = bitcast \2 to \3 addrspace(1)*", function)
    found = re.findall(r"(%\S+) = bitcast .* addrspace\(1\)\*,", function)
    for pointer in found:
        function = re.sub(rf" addrspace\(4\)(\*[^,%]* {pointer}\b)", r" addrspace(1)\1", function)
        found += re.findall(rf"(%\S+) = getelementptr .* addrspace\(1\)\* {pointer},", function)
    return function


def shared_floats(options):
    """The shared memory of a block: as many floats as a kernel takes at most, a pack for each
    thread."""
    sizes = dict(re.findall(r"-D(THREADS|WIDTH)=(\d+)", " ".join(options)))
    return int(sizes["THREADS"]) * int(sizes.get("WIDTH", 1))


def bitcode(source, options, folder):
    """LLVM bitcode of a translated source. Generic pointers, which oclgrind does not know, become
    private ones."""
    text, binary = folder / "kernel.clcpp", folder / "kernel.ll"
    text.write_text(source)
    clang = [TOOLS["clang"], *FLAGS]
    subprocess.run(
        [*clang, *options, "-x", "clcpp", "-S", "-emit-llvm", text, "-o", binary], check=True
    )
    code = binary.read_text()
    code = re.sub(
        r"^define .*?^}", lambda function: in_global_memory(function[0]), code, flags=re.S | re.M
    )
    size = shared_floats(options)
    # oclgrind knows local memory by the kernel's name
    for kernel in re.findall(r"spir_kernel void @(\w+)\(", code):
        before, start, rest = code.partition(f"spir_kernel void @{kernel}(")
        body, end, after = rest.partition("\n}\n")
        local = f"[{size} x float] addrspace(3)* @{kernel}.shared to float addrspace(3)*"
        code = before + start + SHARED.sub(rf"\1 = bitcast {local}", body) + end + after
        code += f"\n@{kernel}.shared = internal addrspace(3) global [{size} x float] undef\n"
    for word, other in GENERIC.items():
        code = re.sub(word, other, code)
    code = MEMCPY.sub(
        lambda m: f"@llvm.memcpy.p{m[2] or 0}i8.p{m[4] or 0}i8.i64({m[1]}{m[3]}", code
    )
    code = re.sub(r"declare void @llvm\.memcpy\..*\n", "", code)  # several are the same by now
    for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        if f"@llvm.memcpy.p{a}i8.p{b}i8" in code:
            types = ", ".join(f"i8 addrspace({n})*" for n in (a, b))
            code += f"declare void @llvm.memcpy.p{a}i8.p{b}i8.i64({types}, i64, i1)\n"
    binary.write_text(code)
    run = [TOOLS["clang"], "-target", "spir64-unknown-unknown", "-w", "-c", "-emit-llvm"]
    subprocess.run([*run, "-x", "ir", binary, "-o", folder / "kernel.bc"], check=True)
    return (folder / "kernel.bc").read_bytes()


def errors(launches, sources, folder):
    """What oclgrind reports of these launches, with these sources by file, and memory afterwards,
    launch by launch."""
    for number, launch in enumerate(launches):
        part = folder / str(number)
        part.mkdir()
        (part / "launch").write_bytes(pickle.dumps(launch))
        bitcode(translated(sources[launch.kernel.split(".")[0]]), launch.options, part)
    checks = ["--data-races", "--uninitialized", "--max-errors", "20"]
    program = [sys.executable, __file__, str(folder), str(len(launches))]
    environment = os.environ | {"PYOPENCL_NO_CACHE": "1"}
    run = subprocess.run(
        ["oclgrind", *checks, *program], check=True, env=environment, capture_output=True, text=True
    )
    results = [pickle.loads((folder / str(n) / "after").read_bytes()) for n in range(len(launches))]
    return run.stderr.strip(), results


def replay(folder):
    """Run a launch in this folder, on the simulator."""
    import pyopencl as cl

    launch = pickle.loads((folder / "launch").read_bytes())
    context = cl.Context(cl.get_platforms()[0].get_devices())
    queue = cl.CommandQueue(context)
    program = cl.Program(context, context.devices, [(folder / "kernel.bc").read_bytes()]).build()
    kernel = getattr(program, launch.kernel.split(".")[1])
    flags, buffers = cl.mem_flags, {}

    def buffer(array, fresh=False):
        if fresh:
            return cl.Buffer(context, flags.READ_WRITE, array.nbytes)
        return cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=array)

    tables = {address: buffer(array) for address, array in launch.pointers.items()}
    moved = {}
    if tables:
        moved = dict(zip(tables, addresses(context, queue, tables.values()), strict=True))
    for i, argument in enumerate(launch.arguments):
        if isinstance(argument, bytes) and tables and i == 0:
            words = np.frombuffer(argument, "int64").tolist()
            # kept alive
            argument = tables[None] = buffer(np.array([moved.get(w, w) for w in words]))
        elif isinstance(argument, bytes):
            argument = np.frombuffer(argument, f"V{len(argument)}")[0]
        elif isinstance(argument, np.ndarray):
            same = next((j for j in buffers if launch.arguments[j] is argument), None)
            argument = buffers[i] = (
                buffer(argument, i in launch.fresh) if same is None else buffers[same]
            )
        kernel.set_arg(i, argument)
    cl.enqueue_nd_range_kernel(queue, kernel, (launch.blocks * launch.threads,), (launch.threads,))
    written = [(memory, launch.arguments[i]) for i, memory in buffers.items()]
    written += [(tables[address], array) for address, array in launch.pointers.items()]
    after = []
    for memory, like in written:
        after.append(np.empty_like(like))
        cl.enqueue_copy(queue, after[-1], memory)
    queue.finish()
    (folder / "after").write_bytes(pickle.dumps(after))


def addresses(context, queue, buffers):
    """The addresses of buffers on the simulator, which a kernel tells."""
    import pyopencl as cl

    source = "__kernel void where(__global const void* x, __global ulong* out) { *out = (ulong)x; }"
    where = cl.Program(context, source).build().where
    out, address = cl.Buffer(context, cl.mem_flags.WRITE_ONLY, 8), np.empty(1, "uint64")
    for buffer in buffers:
        where(queue, (1,), (1,), buffer, out)
        cl.enqueue_copy(queue, address, out)
        yield int(address[0])


if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        replay(Path(sys.argv[1], str(number)))
