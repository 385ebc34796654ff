"""Everything that a layer promises to the rest of the library, tried out."""

import copy
import itertools
import pickle  # nosec B403
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from ..engine.arrays import Array, HostArray, as_array, float32, float64, from_host, to_numpy
from ..engine.backward import inputs_first, node_of
from ..engine.errors import GradientError, ShapeError, parts_of
from ..engine.graph import no_grad
from ..engine.overrides import plain
from ..engine.random import generator, new_generator, seeded
from ..engine.tensor import Tensor, as_tensor
from ..nn.declare import declared
from ..nn.measured import has_refresh, refresh
from ..nn.module import Module, evaluating, observing
from .failure import Wrong, run_checks
from .gradients import Leaf, compare_with_differences
from .parts import in_two_parts
from .state import differing, moves_numpy, untouched

SAMPLES = 8  # of a batch that are looked at one by one
CLOSE = 1e-10  # in float64: computations that differ in the order of their sums only
ROUNDINGS = 4  # draws of rounding errors that show how far a layer amplifies them
ROUNDING = 2.0**-24  # of float32
# by which float32 may exceed the largest of a few random errors: see tests/testing/test_layer.py
SAFETY = 30.0


def check_layer(
    layer: Module,
    *inputs: Tensor | Array,
    order: int = 2,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> None:
    """Check a layer, yours or ours, with these inputs, a batch of at least two samples; raise a
    CheckError that says everything that is wrong. Afterwards the layer is as before.

    - repeated: the same seed gives the same output, so random numbers come from tinyprop.
    - calls: an output depends on the inputs and on what the layer keeps, not on earlier calls.
    - inputs: they stay as they are, and the order of their memory does not matter.
    - output: a later call leaves it as it is; it is the same with and without a recorded graph.
    - parameters: every tensor that has a gradient is an input or a parameter.
    - dtype: float32 stays float32, and float64 float64: the output, and everything that is saved.
    - gradients: of inputs and parameters, up to `order`, in training and in evaluation, by
      `check_gradients`.
    - float32: output and gradients agree with float64, as far as rounding errors of the inputs and
      parameters would change them.
    - samples: an output depends on its own sample only, in evaluation also in a batch of one; in
      training, the layer may declare `sums_over_batch = True` or `statistics =
      tp.nn.Statistics(over="batch")`. The first is tried with a batch that is cut in two.
    - state: a copy that loads the state of a trained layer computes the same.
    - copy, pickle: copies compute the same, and share no memory with the layer.
    - modes: evaluation changes nothing and draws no random numbers; `tp.nn.evaluating()` is the
      same as `eval()`; a layer that is only observed does not move its running estimates.
    - plain: with `tp.plain()` the results are the same.

    >>> tp.testing.check_layer(tp.nn.BatchNorm(3), tp.randn(4, 3))
    >>> class Doubled(tp.nn.Module):
    ...     def forward(self, x):
    ...         return x * np.array([2.0])
    >>> try:
    ...     tp.testing.check_layer(Doubled(), tp.randn(4, 3))
    ... except tp.testing.CheckError as error:
    ...     print(error.failures[0])
    got:  dtype: float64 for inputs of float32 (seed=0)
    rule: a layer keeps the dtype of its inputs
    try:  Python numbers as constants, not float64 arrays
    """
    subject = Subject(layer, inputs, order, tolerance, seed)
    with untouched(layer), np.errstate(all="ignore"):
        subject.check_first_call()
        checks = [(name, partial(check, subject)) for name, check in CHECKS.items()]
        run_checks(checks[:1], seed)  # the others compare calls
        run_checks(checks[1:], seed)


class Subject:
    """A layer and its inputs, and ways to run them."""

    def __init__(
        self,
        layer: Module,
        inputs: Sequence[Tensor | Array],
        order: int,
        tolerance: float,
        seed: int,
    ):
        self.layer = layer
        self.arrays = [as_tensor(x)._data for x in inputs]
        self.order = order
        self.tolerance = tolerance
        self.seed = seed
        self.name = type(layer).__name__

    def check_first_call(self) -> None:
        """Refuse what is no question: errors of the layer itself are the user's to see."""
        sizes = [array.shape[0] for array in self.arrays if array.ndim]
        if not sizes or sizes[0] < 2:
            shapes = ", ".join(str(array.shape) for array in self.arrays)
            raise ShapeError(
                f"check_layer with inputs of shapes {shapes or 'none'}",
                "the first axis of an input counts samples, at least 2 of them",
                "tp.randn(4, 3)",
            )
        out = self.run(self.fresh())
        if not isinstance(out, Tensor) or out.shape[:1] != (sizes[0],):
            what = f"shape {out.shape}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise ShapeError(
                f"{self.name}, which maps {sizes[0]} samples to {what}",
                "a layer maps a batch to one tensor, whose first axis counts the same samples",
                "a Module that returns one tensor of shape (N, ...), such as the outputs of this "
                "one side by side: F.concatenate(layer(x), axis=1)",
            )

    @property
    def samples(self) -> int:
        return len(self.arrays[0])

    def some_samples(self) -> list[int]:
        """The numbers of all samples, or of a few, from the first to the last."""
        last = self.samples - 1
        return sorted({round(place) for place in np.linspace(0, last, min(last + 1, SAMPLES))})

    def is_batch(self, x: Tensor) -> bool:
        """Whether the first axis of an input counts the samples."""
        return x.shape[:1] == (self.samples,)

    def fresh(self, dtype: Any = None, training: bool | None = None) -> Module:
        """A copy of the layer."""
        try:
            layer = copy.deepcopy(self.layer)
        except Exception:  # what is wrong with copies is said by their own check
            layer = self.layer
        if dtype is not None:
            layer.to(dtype=dtype)
        if training is not None:
            layer.train(training)
        return layer

    def inputs(self, dtype: Any = None, requires_grad: bool = False) -> list[Tensor]:
        """Copies of the inputs: those of floating-point numbers in this dtype."""
        tensors = []
        for array in self.arrays:
            is_float = array.dtype.kind == "f"
            values = array.astype(dtype or array.dtype) if is_float else array.copy()
            tensors.append(Tensor(values, requires_grad=requires_grad and is_float))
        return tensors

    def others(self) -> list[Tensor]:
        """Other inputs: half of the numbers, and the same integers for other samples."""
        return [x * 0.5 if x.dtype.kind == "f" else x[::-1] for x in self.inputs()]

    def run(self, layer: Module, inputs: Sequence[Tensor] | None = None) -> Tensor:
        """One call, with the random numbers of the seed."""
        with seeded(self.seed):
            return layer(*(self.inputs() if inputs is None else inputs))

    def outputs(self, layer: Module) -> dict[str, HostArray]:
        """What a layer computes in both modes, without a change of its state."""
        found = {}
        for mode, training in MODES.items():
            with untouched(layer), no_grad():
                layer.train(training)
                found[mode] = to_numpy(self.run(layer)._data).copy()
        return found

    def results(
        self,
        dtype: Any,
        training: bool,
        rounding: "np.random.Generator | None" = None,
        order: str = "C",
    ) -> dict[str, HostArray]:
        """The output and all gradients for a random cotangent, from numbers that are rounded to
        float32; with errors of the size of a rounding in each of them, if a generator is given. The
        memory of inputs is in this order."""
        layer = self.fresh(float32, training).to(dtype=dtype)
        inputs = [
            Tensor(x._data.astype(dtype if x.requires_grad else x.dtype, order), x.requires_grad)
            for x in self.inputs(float32, requires_grad=True)
        ]
        leaves = self.leaves(layer, inputs)
        if rounding is not None:
            for leaf in leaves.values():
                errors = ROUNDING * rounding.standard_normal(leaf.shape)
                leaf.data = as_array(leaf._data * (1.0 + from_host(errors, like=leaf._data)))
        out = self.run(layer, inputs)
        found = {"output": to_numpy(out._data).astype(float64)}
        if out.requires_grad:
            cotangent = new_generator(self.seed).standard_normal(out.shape).astype(float32)
            out.backward(Tensor(from_host(cotangent, like=out._data, dtype=out.dtype)))
        for name, leaf in leaves.items():
            if leaf.grad is not None:
                found[name] = to_numpy(leaf.grad._data).astype(float64)
        return found

    def leaves(self, layer: Module, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """What has a gradient, by the name of that."""
        named = {f"gradient of input {i}": x for i, x in enumerate(inputs) if x.requires_grad}
        return named | {f"gradient of {name!r}": p for name, p in layer.named_parameters()}

    def sizes(self, results: dict[str, HostArray]) -> dict[str, float]:
        """What errors of results are relative to. A gradient may be a small difference of larger
        numbers, or 0: they have about the size of output / input. A deep layer may have larger
        ones: then what cancels in the gradient of a bias is about as large as in that of the
        weights beside it, times weights / bias."""
        output = abs(results["output"]).max(initial=0.0)
        leaves = self.leaves(self.layer, self.inputs(requires_grad=True))
        largest = {name: float(abs(leaves[name]._data).max()) for name in results.keys() & leaves}
        found = {"output": output}
        for name, own in largest.items():
            found[name] = output / (own or 1.0)
            for other, size in largest.items():
                if _module_of(other) == _module_of(name):
                    relative = size / own if own else 1.0
                    cancelling = float(abs(results[other]).max(initial=0.0)) * relative
                    found[name] = max(found[name], cancelling)
        return found

    def state(self, layer: Module) -> dict[str, HostArray]:
        return {name: to_numpy(value) for name, value in layer.state_dict().items()}


def _module_of(name: str) -> str:
    """The part of a network that "gradient of '3.weight'" belongs to; an input is by itself."""
    return name.rpartition(".")[0] if name.endswith("'") else name


MODES = {"training": True, "evaluation": False}


def largest_difference(first: HostArray, second: HostArray, size: float = 0.0) -> float:
    """Relative to the largest value, or to a larger size; infinite if a value is NaN in one of them
    only."""
    if first.shape != second.shape:
        return np.inf
    is_same = (first == second) | (np.isnan(first) & np.isnan(second))
    if is_same.all():
        return 0.0
    with np.errstate(invalid="ignore"):
        off = abs(first - second)[~is_same].max()
    scale = max(size, abs(first[np.isfinite(first)]).max(initial=0.0))
    relative = off / scale if scale else np.inf
    return float(np.inf if np.isnan(relative) else relative)


def compare(
    expected: dict[str, HostArray],
    found: dict[str, HostArray],
    got: str,
    rule: str,
    hint: str,
    allowed: float = 0.0,
    sizes: dict[str, float] | None = None,
) -> None:
    """Refuse results that differ: `got` says what was done. `sizes` are what differences are
    relative to, if it is more than the largest value."""
    for name, values in expected.items():
        size = sizes[name] if sizes else 0.0
        if largest_difference(values, found[name], size) > allowed:
            place = _largest_place(values, found[name])
            raise Wrong(f"{got}, {name}: {place}", rule, hint)


def _largest_place(expected: HostArray, found: HostArray) -> str:
    if expected.shape != found.shape:
        return f"shape {found.shape} where {expected.shape} is expected"
    with np.errstate(invalid="ignore"):
        off = np.nan_to_num(abs(found - expected), nan=np.inf)
    place = tuple(map(int, np.unravel_index(int(off.argmax()), off.shape)))
    return f"{found[place]:.9g} at {place} where {expected[place]:.9g} is expected"


# -- the checks


def check_repeated(subject: Subject) -> None:
    rule = (
        "the same seed gives the same output: random numbers come from tinyprop's generator, and "
        "what a layer keeps is its own"
    )
    hint = (
        "tp.functional.dropout, tp.rand or tp.randn; for other random numbers, a seed in __init__; "
        "nothing kept in a class attribute"
    )
    first, second = (subject.outputs(subject.fresh()) for _ in range(2))
    compare(first, second, f"two calls with seed={subject.seed}", rule, hint)
    if moves_numpy(lambda: subject.outputs(subject.fresh())):
        got = f"a {subject.name} that moves or seeds NumPy's generator of the whole process"
        raise Wrong(got, rule, hint)


def check_calls(subject: Subject) -> None:
    for training in MODES.values():
        used = subject.fresh(training=training)
        if used is subject.layer:
            return  # there are no copies
        with no_grad(), observing():
            subject.run(used, subject.others())
            _compare_with_new(subject, used, subject.fresh(training=training), "other inputs")
            new = subject.fresh(training=training)
            for layer in (used, new):
                _move_parameters(subject, layer)
            _compare_with_new(subject, used, new, "other inputs and parameters")


def _compare_with_new(subject: Subject, used: Module, new: Module, earlier: str) -> None:
    mode = "training" if used.training else "evaluation"
    expected, found = (to_numpy(subject.run(layer)._data).copy() for layer in (new, used))
    compare(
        {"output": expected},
        {"output": found},
        f"in {mode}, after a call with {earlier} (seed={subject.seed})",
        "an output depends on the inputs and on what the layer keeps, not on earlier calls",
        "nothing that a call has computed is kept for the next one, unless it is part of the state",
    )


def check_inputs(subject: Subject) -> None:
    for mode, training in MODES.items():
        for how in (nullcontext, plain):
            inputs = subject.inputs(requires_grad=True)
            before = [to_numpy(x._data).copy() for x in inputs]
            with how():
                out = subject.run(subject.fresh(training=training), inputs)
                if out.requires_grad:
                    out.sum().backward()
            for i, (x, array) in enumerate(zip(inputs, before, strict=True)):
                compare(
                    {"input": array},
                    {"input": to_numpy(x._data)},
                    f"input {i} after a call in {mode} (seed={subject.seed})",
                    "a layer does not write to its inputs: others use them, too",
                    "y = F.relu(x), or a copy: x.data.copy()",
                )
    for mode, training in MODES.items():
        expected = subject.results(float64, training)
        compare(
            expected,
            subject.results(float64, training, order="F"),
            f"{mode}, with inputs whose memory is in Fortran's order (seed={subject.seed})",
            "the same numbers give the same results, wherever they lie in memory",
            "indices and axes only; no ravel(order='K'), no strides",
            CLOSE,
            subject.sizes(expected),
        )


def check_output(subject: Subject) -> None:
    for mode, training in MODES.items():
        layer = subject.fresh(training=training)
        with no_grad():
            out = subject.run(layer)
            before = to_numpy(out._data).copy()
            subject.run(layer, subject.others())
        compare(
            {"output": before},
            {"output": to_numpy(out._data)},
            f"after a second call in {mode} (seed={subject.seed})",
            "an output stays as it is: each call returns memory of its own",
            "a new array in each call, no buffer that is used again",
        )
        recorded = subject.run(
            subject.fresh(float64, training), subject.inputs(float64, requires_grad=True)
        )
        compare(
            {"output": to_numpy(recorded._data)},
            {"output": _output(subject, training, subject.inputs(float64))},
            f"{mode} inside of tp.no_grad() (seed={subject.seed})",
            "an output is the same whether a graph is recorded or not",
            "self.training for what differs in training; do not ask for requires_grad",
            CLOSE,
        )


def check_parameters(subject: Subject) -> None:
    for mode, training in MODES.items():
        layer = subject.fresh(training=training)
        inputs = subject.inputs(requires_grad=True)
        out = subject.run(layer, inputs)
        _, leaves = inputs_first(node_of(out))
        known = {*inputs, *layer.parameters(), out}
        unknown = [leaf for leaf in leaves if leaf not in known]
        if unknown:
            raise Wrong(
                f"in {mode}, the output depends on a tensor of shape {unknown[0].shape} that "
                f"requires a gradient, and is no parameter of {subject.name} (seed={subject.seed})",
                "a layer knows its parameters: others are in no optimizer and in no state",
                "self.weight = ..., or a list, tuple or dict of the layer; not in another object",
            )


def check_dtype(subject: Subject) -> None:
    rule = "a layer keeps the dtype of its inputs"
    hint = "Python numbers as constants, not float64 arrays"
    for dtype, training in itertools.product((float32, float64), MODES.values()):
        layer = subject.fresh(dtype, training)
        before = {name: value.dtype for name, value in layer.state_dict().items()}
        out = subject.run(layer, subject.inputs(dtype))
        if out.dtype != dtype:
            when = "" if training else ", in evaluation"
            got = f"{out.dtype} for inputs of {np.dtype(dtype)}{when} (seed={subject.seed})"
            raise Wrong(got, rule, hint)
        for name, value in layer.state_dict().items():
            if value.dtype != before.get(name, value.dtype):
                got = f"{name!r} is {value.dtype} after a call with {np.dtype(dtype)}"
                raise Wrong(got, "parameters and buffers keep their dtype", hint)


def check_gradients_of_layer(subject: Subject) -> None:
    is_same = _computes_the_same(subject)
    for mode, training in MODES.items():
        if is_same and training:
            continue  # evaluation says it
        layer = subject.fresh(float64, training)
        inputs = subject.inputs(float64, requires_grad=True)
        leaves = [Leaf(f"input {i}", x) for i, x in enumerate(inputs) if x.requires_grad]
        leaves += [Leaf(f"parameter {name!r}", p) for name, p in layer.named_parameters()]
        if not leaves:
            return
        try:
            with observing():
                value = partial(subject.run, layer, inputs)
                compare_with_differences(
                    value, leaves, subject.order, subject.tolerance, subject.seed
                )
        except GradientError as error:
            got, rule, hint = error.args
            raise Wrong(f"{mode}, {got}", rule, hint) from None


def _computes_the_same(subject: Subject) -> bool:
    """Whether a layer does the same in training and in evaluation: the same ops, with the same
    output and the same gradients."""
    kinds = []
    for training in MODES.values():
        layer = subject.fresh(float64, training)
        out = subject.run(layer, subject.inputs(float64, requires_grad=True))
        ops, _ = inputs_first(node_of(out))
        kinds.append([type(op) for op in ops])
    if kinds[0] != kinds[1]:
        return False
    first, second = (subject.results(float64, training) for training in MODES.values())
    is_equal = (largest_difference(first[name], second[name]) == 0.0 for name in first)
    return first.keys() == second.keys() and all(is_equal)


def check_float32(subject: Subject) -> None:
    for mode, training in MODES.items():
        exact = subject.results(float64, training)
        sizes = subject.sizes(exact)
        allowed = _allowed_rounding(subject, training, exact, sizes)
        for how in (nullcontext, plain):
            with how():
                found = subject.results(float32, training)
            for name, values in exact.items():
                compare(
                    {name: values},
                    {name: found[name]},
                    f"{mode} in float32 (seed={subject.seed})",
                    f"float32 agrees with float64 to {allowed[name]:.1g}, relatively: rounding "
                    "errors of inputs and parameters do not change it by more",
                    "subtract before squaring or exponentials; tp.functional has stable functions",
                    allowed[name],
                    sizes,
                )


def _allowed_rounding(
    subject: Subject, training: bool, exact: dict[str, HostArray], sizes: dict[str, float]
) -> dict[str, float]:
    """How far float32 may be off: by what random errors in inputs and parameters do, and by a
    rounding of the result."""
    allowed = dict.fromkeys(exact, 0.0)
    random = new_generator(subject.seed)
    for _ in range(ROUNDINGS):
        moved = subject.results(float64, training, random)
        for name, values in exact.items():
            response = largest_difference(values, moved[name], sizes[name])
            allowed[name] = max(allowed[name], SAFETY * (response + ROUNDING))
    return allowed


def check_samples(subject: Subject) -> None:
    sums = [m for m in subject.layer.modules() if declared(m, "sums_over_batch")]
    looks = [m for m in subject.layer.modules() if _over_batch(declared(m, "statistics"))]
    for mode, training in MODES.items():
        off, sample = _influence(subject, training)
        if not off > CLOSE:
            continue
        got = (
            f"in {mode}, the output of sample {sample} changes by {off:.1g} of its size if the "
            f"other samples of the batch change (seed={subject.seed})"
        )
        if not training:
            rule = "in evaluation an output depends on its own sample: batches are cut at will"
            raise Wrong(got, rule, "running estimates of what training takes from the batch")
        independent = [m for m in subject.layer.modules() if declared(m, "per_sample")]
        if subject.layer in independent:
            got += f", though {subject.name} declares per_sample = True"
        if subject.layer in independent or not (sums or looks):
            rule = "an output depends on its own sample, or the class declares that it does not"
            hint = "sums_over_batch = True, with sums by tp.nn.over_batch; or drop the dependence"
            raise Wrong(got, rule, hint)
    _check_alone(subject)
    if sums:
        _check_parts(subject, ", ".join(sorted({type(m).__name__ for m in sums})))


def _check_alone(subject: Subject) -> None:
    whole = _output(subject, False, subject.inputs(float64))
    for sample in subject.some_samples():
        inputs = subject.inputs(float64)
        mine = [x[sample : sample + 1] if subject.is_batch(x) else x for x in inputs]
        got = f"sample {sample} by itself, in evaluation (seed={subject.seed})"
        rule = "in evaluation an output depends neither on the size of its batch nor on its place"
        hint = "shapes without the first axis: x.shape[1:]"
        try:
            alone = _output(subject, False, mine)
        except Exception as error:
            parts = parts_of(error) or (f"{type(error).__name__}: {error}",)
            raise Wrong(f"{got} fails: {parts[0]}", rule, hint) from error
        compare({"output": whole[sample]}, {"output": alone[0]}, got, rule, hint, CLOSE)


def _over_batch(statistics: Any) -> bool:
    return statistics is not None and statistics.over == "batch"


def _influence(subject: Subject, training: bool) -> tuple[float, int]:
    """How far other samples change the output of one, relative to it, and the one that changes
    most."""
    whole = _output(subject, training, subject.inputs(float64))
    worst = (0.0, 0)
    for sample in subject.some_samples():
        changed = []
        for x in subject.inputs(float64):
            if subject.is_batch(x):  # all samples become this one
                x.data[...] = x._data[sample].copy()
            changed.append(x)
        out = _output(subject, training, changed)
        worst = max(worst, (largest_difference(whole[sample], out[sample]), sample))
    return worst


def _output(subject: Subject, training: bool, inputs: Sequence[Tensor]) -> HostArray:
    layer = subject.fresh(float64, training)
    with no_grad(), np.errstate(all="ignore"):
        return to_numpy(subject.run(layer, inputs)._data)


def _check_parts(subject: Subject, names: str) -> None:
    whole = _output(subject, True, subject.inputs(float64))

    def part(places: slice) -> HostArray:
        inputs = subject.inputs(float64)
        mine = [x[places] if subject.is_batch(x) else x for x in inputs]
        return _output(subject, True, mine)

    compare(
        {"output": whole},
        {"output": np.concatenate(in_two_parts(part, subject.samples))},
        f"a batch in two parts (seed={subject.seed})",
        f"{names} declares sums_over_batch = True: two parts of a batch give what the whole gives",
        "nn.over_batch(F.sum(x, axis)) / nn.over_batch(len(x)) in place of a mean over the batch",
        CLOSE,
    )


def check_state(subject: Subject) -> None:
    trained, other = subject.fresh(), subject.fresh()
    if trained is other:
        return  # there are no copies
    _train(subject, trained)
    other.load_state_dict(trained.state_dict())
    missing = differing(trained, other)
    outputs = subject.outputs(trained), subject.outputs(other)
    also = f"; {', '.join(missing)} changed in training, and is not in it" if missing else ""
    compare(
        *outputs,
        f"a copy that loads the state of the trained layer (seed={subject.seed}{also})",
        "state_dict() has everything that the output depends on",
        "a tensor that does not require a gradient, as attribute: self.mean = tp.zeros(3)",
    )


def _train(subject: Subject, layer: Module) -> None:
    """What a training does to a layer: parameters and running estimates move."""
    _move_parameters(subject, layer)
    layer.train()
    if has_refresh(layer) and len(subject.arrays) == 1:
        refresh(layer, subject.inputs()[0])
    for _ in range(2):
        with no_grad():
            subject.run(layer)


def _move_parameters(subject: Subject, layer: Module) -> None:
    random = new_generator(subject.seed)
    for p in layer.parameters():
        step = 0.1 * random.standard_normal(p.shape)
        p.data = as_array(p._data * (1.0 + from_host(step, like=p._data, dtype=p.dtype)))


def check_copy(subject: Subject) -> None:
    _check_copies(subject, "copy.deepcopy", copy.deepcopy)


def check_pickle(subject: Subject) -> None:
    def pickled(layer: Module) -> Module:
        return pickle.loads(pickle.dumps(layer))  # nosec B301

    _check_copies(subject, "pickle", pickled)


def _check_copies(subject: Subject, how: str, copied: Callable[[Module], Module]) -> None:
    rule = "a layer can be copied, to other processes, too; a copy computes the same"
    try:
        twin = copied(subject.layer)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        culprits = [f"{name!r}" for name in _failing(subject.layer, copied)]
        where = f" of attribute {', '.join(culprits)}" if culprits else ""
        got = f"{how}{where} fails with {type(error).__name__}: {lines[0]}"
        hint = "functions and classes of the top level of a file, no lambda, no open file, no lock"
        raise Wrong(got, rule, hint) from error
    expected = subject.outputs(subject.layer)
    compare(
        expected,
        subject.outputs(twin),
        f"{how} (seed={subject.seed})",
        rule,
        "keep what the output depends on in attributes; look at __getstate__ and __deepcopy__",
    )
    for _, tensor in twin._named_tensors():
        tensor._data[...] = tensor._data * 2 + 1
    compare(
        expected,
        subject.outputs(subject.layer),
        f"the layer, after parameters of its copy by {how} have changed (seed={subject.seed})",
        "a copy has memory of its own",
        "no tensor in a class attribute; look at __deepcopy__",
    )


def _failing(layer: Module, copied: Callable[[Any], Any]) -> Iterator[str]:
    """The attributes that cannot be copied."""
    for prefix, module in layer._named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Module):
                continue
            try:
                copied(value)
            except Exception:
                yield prefix + name


def check_modes(subject: Subject) -> None:
    seed = f"(seed={subject.seed})"
    _check_unmoved(
        subject,
        f"a call in evaluation {seed}",
        nullcontext(),
        training=False,
        rule="evaluation changes nothing",
        hint="if self.training: ... around what moves",
    )
    _check_unmoved(
        subject,
        f"a call inside of tp.observe {seed}",
        observing(),
        training=True,
        rule="a layer that is only observed does not move its running estimates",
        hint="if not tp.nn.is_observing(): ... around what moves",
    )
    layer = subject.fresh(training=False)
    with no_grad():
        first, second = (to_numpy(layer(*subject.inputs())._data).copy() for _ in range(2))
    compare(
        {"output": first},
        {"output": second},
        f"two calls in evaluation {seed}",
        "evaluation is not random",
        "if self.training: ... around what is random",
    )
    with seeded(subject.seed + 1), no_grad():  # not the seed that a layer may set
        before = generator().bit_generator.state
        layer(*subject.inputs())
        after = generator().bit_generator.state
    if before != after:
        raise Wrong(
            f"a call in evaluation moves tinyprop's random generator {seed}",
            "evaluation draws no random numbers, and does not seed them",
            "if self.training: ... around what is random",
        )
    with evaluating(), no_grad():
        inside = to_numpy(subject.run(subject.fresh(training=True))._data)
    compare(
        {"output": subject.outputs(subject.fresh())["evaluation"]},
        {"output": inside},
        f"inside of tp.nn.evaluating() {seed}",
        "it is the same as after eval(), which reaches all modules",
        "ask self.training; keep inner modules in attributes, lists or dicts",
    )


def _check_unmoved(
    subject: Subject,
    got: str,
    block: AbstractContextManager[None],
    training: bool,
    rule: str,
    hint: str,
) -> None:
    layer = subject.fresh(training=training)
    state = subject.state(layer)
    with block, no_grad():
        subject.run(layer)
    moved = [name for name, value in subject.state(layer).items() if not _same(state, name, value)]
    if moved:
        raise Wrong(f"{got} changes {', '.join(moved)}", rule, hint)


def _same(state: dict[str, HostArray], name: str, value: HostArray) -> bool:
    return name in state and largest_difference(state[name], value) == 0.0


def check_plain(subject: Subject) -> None:
    for mode, training in MODES.items():
        expected = subject.results(float64, training)
        with plain():
            found = subject.results(float64, training)
        compare(
            expected,
            found,
            f"{mode} with tp.plain() (seed={subject.seed})",
            f"it gives the same up to rounding, {CLOSE} relatively",
            "write to no array that an op has used; write the layer with tp.functional",
            CLOSE,
            subject.sizes(expected),
        )


CHECKS: dict[str, Callable[[Subject], None]] = {
    "repeated": check_repeated,
    "calls": check_calls,
    "inputs": check_inputs,
    "output": check_output,
    "parameters": check_parameters,
    "dtype": check_dtype,
    "gradients": check_gradients_of_layer,
    "float32": check_float32,
    "samples": check_samples,
    "state": check_state,
    "copy": check_copy,
    "pickle": check_pickle,
    "modes": check_modes,
    "plain": check_plain,
}
