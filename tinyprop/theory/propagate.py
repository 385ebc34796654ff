"""The mean and variance of every layer, computed from its weights and from the moments of the
input."""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import nn
from ..engine.arrays import HostArray, to_numpy
from ..engine.errors import ShapeError, explain, name_place
from ..engine.graph import no_grad
from ..engine.tensor import Tensor
from ..nn.module import observing, visiting
from ..nn.observation import CallNames, knows_pre_activation
from ..nn.state import State
from ..report.table import Table, Tabular
from .field import WHOLE, Field
from .inputs import INPUTS, Samples
from .mixture import Mixture
from .sample import COUNT, CheckSample, Measured, sample_of_data, sample_of_gaussian
from .wide import Enlarged


@dataclass(frozen=True)
class Propagated(Tabular):
    """The predicted moments of one layer, for each unit or channel, over samples and positions,
    and how much it varied in a sample.

    They are those of the pre-activations for layers with weights, of the output for all others.
    `exact` says that they hold for the weights and the input as given, to 1e-9: `error` bounds what
    series leave out, relative to the variance.

    Otherwise `variance` is what theory says, `measured` what 256 inputs of the given law make of
    the network itself, and `error` covers the truth in 19 of 20 cases or more: it is the difference
    of their means over units plus two standard errors, relative to `measured`. `parted` says that
    they differ by more than 5 %, and by more than chance allows: from the first layer where they
    do, theory leaves something out. `undecided` says that it cannot be told: the sample varies too
    much, or numbers are not finite. A layer that the network's forward does not call has no
    `measured`, and an infinite error. With random weights nothing is measured, and `error` is an
    estimate: it adds up 1 / width of each layer, the rate of the central limit theorem.

    >>> net = tp.nn.Sequential(tp.nn.Linear(2, 1, bias=False))
    >>> net[0].weight.data[...] = [[3.0, 4.0]]
    >>> (record,) = tp.propagate(net, [1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]])
    >>> record.layer, record.mean, record.variance, record.exact, record.error
    ('0 Linear', array([3.]), array([25.]), True, 0.0)
    >>> record.measured.round(1), record.parted
    (array([22.9]), False)
    """

    layer: str  # where it is in the network, and its class: "2 MaxPool2d", "hidden Linear"
    mean: HostArray
    variance: HostArray
    exact: bool
    error: float
    measured: HostArray | None = None
    parted: bool = False
    undecided: bool = False

    def checked(self, sample: Measured | None) -> "Propagated":
        """Beside what a sample says. An exact record keeps its error."""
        if sample is None:
            return self
        error = self.error if self.exact else sample.error_of(self.variance)
        return replace(
            self,
            error=error,
            measured=sample.variance,
            parted=sample.contradicts(self.variance),
            undecided=not sample.decides(self.variance),
        )

    def table(self) -> Table:
        return Propagation([self]).table()


class Propagation(list[Propagated], Tabular):
    """The predictions for the layers of a network, which a notebook shows as a table.

    >>> net = tp.nn.Sequential(tp.nn.Linear(2, 1, bias=False))
    >>> net[0].weight.data[...] = [[3.0, 4.0]]
    >>> print(tp.propagate(net, [1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]]).table().text())
    layer     units  mean  variance  measured  error  theory and sample
    0 Linear      1     3        25      22.9      0  exact
    """

    def table(self) -> Table:
        """Moments averaged over units, and where theory and sample part."""
        rows = []
        for record in self:
            measured = "-" if record.measured is None else f"{record.measured.mean():.3g}"
            numbers = [
                f"{record.mean.size:,}",
                f"{record.mean.mean():.3g}",
                f"{record.variance.mean():.3g}",
                measured,
                f"{record.error:.2g}",
            ]
            rows.append([record.layer, *numbers, verdict(record)])
        note = ""
        if any(record.mean.size > 1 for record in self):
            note = "Mean and variance are averages over units."
        header = ["layer", "units", "mean", "variance", "measured", "error", "theory and sample"]
        return Table(header, rows, align="lrrrrrl", note=note)


def verdict(record: Propagated) -> str:
    """Whether theory and sample agree, in words."""
    if record.parted:
        return "exact, but they part" if record.exact else "they part"
    if record.exact:
        return "exact"
    if record.measured is None:
        return "not measured"
    return "cannot be told" if record.undecided else "agree"


def propagate(
    net: nn.Module,
    mean: Any = None,
    covariance: Any = None,
    *,
    data: Any = None,
    components: int = 1,
    weights: str = "given",
) -> Propagation:
    """Predict the mean and variance of every layer of a network with these weights, or with random
    ones.

    The network's own forward runs, on a `tp.theory.State`, which knows the moments of a signal: so
    any network is taken whose forward calls layers, functions that have a rule (linear maps,
    convolutions, activations, pools, normalisers), and operators. What branches have in common is
    taken into account when they are added. Any other layer says in a method `propagate` what it
    does to a State, and without one it is refused. There is a record for each call of a layer.

    The input is Gaussian, with a mean (C, H, W) or (features,) and a covariance matrix of all its
    values; or `data` (N, C, H, W) or (N, features), which are taken as a mixture of so many
    Gaussians: groups of samples that are alike in contrast and brightness. Ten describe images much
    better than one.

    The prediction is exact, to 1e-9, up to the second linear layer, where the input is Gaussian and
    has at most 4096 values: pointwise layers in a row, such as DyT and an activation, count as one
    activation, and in its place there may be a normaliser of samples (at most 1024 values, in at
    most 16 groups, fewer if these are large). Later layers are treated as Gaussian, which wide
    untrained layers nearly are. Values of larger images are taken to correlate alike at all
    positions, and their samples are divided by the expected norm. Layers run in their own mode:
    BatchNorm and BatchNormalizer in training mode divide by the standard deviation that is
    predicted, and Dropout adds its variance.

    With weights="random" the prediction is the average over networks whose weights are random,
    independent, and as large as these: see `tinyprop.theory.wide`. Each record has one number, the
    same for all units; its mean is the root mean square of the means of units. It is exact for wide
    layers and any data, Gaussian or not: `error` adds up 1 / width, and nothing is measured.

    With the given weights, the network also runs once on 256 samples of the Gaussian, or on so many
    of the data, always the same: see `Propagated`.

    >>> net = tp.nn.Sequential(tp.nn.Linear(3, 2), tp.nn.ReLU(), tp.nn.Linear(2, 1))
    >>> records = tp.propagate(net, [0.0] * 3, [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    >>> [(r.layer, r.mean.shape, r.exact) for r in records]
    [('0 Linear', (2,), True), ('1 ReLU', (2,), True), ('2 Linear', (1,), True)]
    >>> class Block(tp.nn.Module):
    ...     def __init__(self):
    ...         self.inner = tp.nn.Linear(2, 2)
    ...     def forward(self, x):
    ...         return x + tp.functional.relu(self.inner(x))
    >>> [r.layer for r in tp.propagate(Block(), [0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]])]
    ['inner Linear', 'Block']
    """
    if weights not in ("given", "random"):
        raise ValueError(
            explain(f"weights={weights!r}", "they are 'given' or 'random'", "weights='given'")
        )
    if not isinstance(net, nn.Module):
        got = f"propagate of a {type(net).__name__}"
        raise TypeError(explain(got, "it runs a Module", "a class with a forward"))
    if data is not None and not (mean is None and covariance is None):
        got, rule = "propagate with data, and a mean or a covariance", "the data have their own"
        raise ValueError(
            explain(got, rule, "propagate(net, data=x), or propagate(net, mean, covariance)")
        )
    given = gaussian_law(mean, covariance) if data is None else samples_in(data)
    check_finite(net)
    if weights == "random":
        return Propagation(walked_with_samples(net, samples_of(given)))
    if isinstance(given, tuple):
        start = Mixture.start([Field.of(*given)])
    else:
        start = fitted(given, components)
    return Propagation(checked(walked(net, start), net, given))


def walked_with_samples(net: nn.Module, start: Samples) -> list[Propagated]:
    """The records of random weights. If a layer enlarges the images, it starts again, with fewer
    samples in a block."""
    while True:
        try:
            return walked(net, start)
        except Enlarged as larger:
            start = replace(start, positions=larger.positions)


def walked(net: nn.Module, start: State) -> list[Propagated]:
    """What each layer does to a State. An error says at which layer it happened."""
    walk = Walk(net)
    try:
        with no_grad(), observing(), visiting(walk.visit):
            out = net(start)
    except ValueError as error:
        name_place(error, f"the layer {walk.running[-1]}")
        raise
    if not isinstance(out, State):
        kind = type(net).__name__
        got = f"{kind}, which returned a {type(out).__name__} for a State"
        rule = "a network that takes a State returns one"
        raise TypeError(explain(got, rule, "tp.observe(net, x) measures any network"))
    return walk.records


def checked(
    records: list[Propagated], net: nn.Module, given: HostArray | tuple[HostArray, HostArray]
) -> list[Propagated]:
    """The records beside a check sample of the law that was given."""
    if isinstance(given, tuple):
        batch = sample_of_gaussian(*given)
        is_drawn = True
    else:
        batch = sample_of_data(given)
        is_drawn = len(batch) < len(given)
    sample = CheckSample(net, batch, is_drawn)
    found = [record.checked(sample.next(record.layer)) for record in records]
    for record in found:
        if record.exact and record.parted:
            warn(record)
            break  # later ones follow from it
    return found


def warn(record: Propagated) -> None:
    """An exact rule does not miss a sample by chance: the rule of a layer differs from its
    forward."""
    assert record.measured is not None
    got = (
        f"a variance of {record.variance.mean():.4g} of {record.layer}, and of "
        f"{record.measured.mean():.4g} in {COUNT} samples"
    )
    rule = "the prediction is exact, so both agree"
    try_this = "compare `propagate` of this layer, or of one before it, with its forward"
    warnings.warn(explain(got, rule, try_this), stacklevel=4)


class Walk:
    """Writes down what each call of a layer does to a State.

    A module whose result is that of the last layer inside it, as a Sequential, has no record of its
    own."""

    def __init__(self, net: nn.Module):
        self.names = CallNames(net)
        self.running: list[str] = []  # the calls that have begun and not ended, the innermost last
        self.records: list[Propagated] = []
        self.last: State | None = None

    def visit(self, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        name = self.names.next(layer)
        depth = len(self.running)
        self.running.append(name)
        count = len(self.records)

        def after_call(out: Any) -> None:
            self._keep(out, layer, name, count)
            del self.running[depth:]

        return after_call

    def _keep(self, out: Any, layer: nn.Module, name: str, count: int) -> None:
        """Write a record, unless a layer inside, after the first `count` records, has the same."""
        has_layers = len(self.records) > count
        is_known = has_layers and out is self.last
        if not isinstance(out, State) or is_list(layer) or is_known:
            return
        state: Any = out
        if knows_pre_activation(type(layer)):
            state = state.before_activation()
        self.records.append(Propagated(name, *state.summary()))
        self.last = out


def is_list(module: nn.Module) -> bool:
    """Whether it only calls its layers, one after the other."""
    return type(module).forward is nn.Sequential.forward


def check_finite(net: nn.Module) -> None:
    """A network that has diverged has no moments to predict."""
    for name, parameter in net.named_parameters():
        if not np.isfinite(to_numpy(parameter._data)).all():
            got = f"a parameter {name} of which some numbers are infinite or NaN"
            hint = "weights from before the training diverged"
            raise ValueError(explain(got, "moments of finite weights are predicted", hint))


def gaussian_law(mean: Any, covariance: Any) -> tuple[HostArray, HostArray]:
    """Both as checked arrays, the covariance as a matrix."""
    mean = np.asarray(getattr(mean, "data", mean), "float64")
    matrix = np.asarray(getattr(covariance, "data", covariance), "float64")
    if mean.ndim not in (1, 3) or not mean.size or matrix.size != mean.size**2:
        got = f"a mean of shape {mean.shape} and a covariance of shape {matrix.shape}"
        rule = "the mean is (features,) or (C, H, W), the covariance that of all its values"
        raise ShapeError(got, rule, "data=images")
    matrix = matrix.reshape(mean.size, mean.size)
    if not (np.isfinite(mean).all() and np.isfinite(matrix).all()):
        got = "a mean or a covariance of which some numbers are infinite or NaN"
        raise ValueError(explain(got, "moments are finite", "the mean and numpy.cov of samples"))
    if not is_covariance(matrix):
        got = "a covariance that is not symmetric, or gives some direction a negative variance"
        raise ValueError(explain(got, "it is a covariance matrix", "numpy.cov(samples.T)"))
    return mean, matrix


def is_covariance(matrix: HostArray) -> bool:
    """Whether it is symmetric and has no negative eigenvalue, up to rounding."""
    slack = 1e-6 * (abs(matrix).max(initial=0.0) or 1.0)
    try:
        np.linalg.cholesky(matrix + slack * np.eye(len(matrix)))
    except np.linalg.LinAlgError:
        return False
    return bool(np.allclose(matrix, matrix.T, rtol=0, atol=slack))


def samples_of(given: HostArray | tuple[HostArray, HostArray]) -> Samples:
    """The input of a network with random weights: data, or samples of a Gaussian."""
    is_gaussian = isinstance(given, tuple)
    batch = sample_of_gaussian(*given, INPUTS) if isinstance(given, tuple) else given
    positions = math.prod(batch.shape[2:])
    return Samples(Tensor(batch), sampled=is_gaussian, positions=positions)


def samples_in(data: Any) -> HostArray:
    """The data as a checked array of samples."""
    samples: HostArray = np.asarray(to_numpy(getattr(data, "data", data)))
    are_real = samples.dtype.kind in "fiub"
    if not are_real or samples.ndim not in (2, 4) or not samples.size:
        got = f"data of shape {samples.shape} and dtype {samples.dtype}"
        rule = "they are real numbers, (N, features) or (N, C, H, W)"
        raise ShapeError(got, rule, "x.reshape(len(x), -1)")
    if not np.isfinite(samples).all():
        got = "data of which some numbers are infinite or NaN"
        raise ValueError(explain(got, "moments are finite", "numpy.nan_to_num(data)"))
    return samples


def fitted(data: HostArray, components: int) -> Mixture:
    """Samples as a mixture of Gaussians, one for each group of samples that are alike."""
    check_components(data, components)
    samples = data.reshape(len(data), -1).astype("float32")
    fields = []
    weights = []
    for group in alike(samples, components):
        members = samples[group]
        mean = members.mean(axis=0, dtype="float64")
        centered = members - mean.astype("float32")
        covariance = centered.T @ centered / np.float32(len(group))
        fields.append(Field.of(mean.reshape(data.shape[1:]), covariance))
        weights.append(len(group) / len(data))
    return Mixture.start(fields, weights=tuple(weights), gaussian=False)


def check_components(data: HostArray, components: int) -> None:
    """Refuse more Gaussians than the samples have covariances for."""
    is_number = isinstance(components, (int, np.integer)) and components >= 1
    if is_number and 2 * components <= len(data) and data[0].size <= WHOLE:
        return
    got = f"data of shape {data.shape} for {components} Gaussians"
    rule = f"samples have at most {WHOLE} values, and there are two samples for each Gaussian"
    hint = "smaller images" if data[0].size > WHOLE else "components=1, and more samples"
    raise ShapeError(got, rule, hint)


def alike(samples: HostArray, count: int) -> list[HostArray]:
    """The indices of the samples (N, values) in each of `count` groups: of equal contrast, and
    inside each, of equal brightness, in as many parts as divide `count`.

    >>> dark_flat, light_flat, dark, light = [0, 0], [9, 9], [-5, 5], [0, 10]
    >>> [group.tolist() for group in alike(np.array([light, dark_flat, dark, light_flat]), 4)]
    [[1], [3], [2], [0]]
    """
    contrast = samples.std(axis=1)
    brightness = samples.mean(axis=1)
    divisors = [k for k in range(1, count + 1) if count % k == 0]
    parts = max(k for k in divisors if k * k <= count)
    by_contrast = np.argsort(contrast, kind="stable")
    groups = []
    for members in np.array_split(by_contrast, count // parts):
        by_brightness = members[np.argsort(brightness[members], kind="stable")]
        groups += np.array_split(by_brightness, parts)
    return groups
