"""What is left of a run in its folder: its record, and the trained network."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import nn
from ..engine.arrays import use_backend
from ..engine.errors import StateError
from ..engine.random import generator
from ..nn.module import Module
from . import checkpoint
from .checkpoint import Checkpoint
from .config import Config
from .network import Shape, assembled
from .own import check_same_network, describe, import_home, make_network
from .show import show_run


@dataclass(frozen=True)
class SavedRun:
    """A run as its newest checkpoint has it.

    `history` has a row for each finished epoch, `signals` one for each layer and epoch. `data` is
    the fingerprint of the images and labels that it was trained and tested on."""

    folder: Path
    config: Config
    history: tuple[dict[str, float], ...]
    signals: tuple[dict[str, Any], ...]
    data: str
    classes: tuple[str, ...]  # an older version did not record them
    versions: dict[str, str]

    @property
    def epoch(self) -> int:
        """How many are done."""
        return len(self.history)

    @property
    def is_finished(self) -> bool:
        return self.epoch >= self.config.epochs

    def _repr_html_(self) -> str:
        return show_run(self.folder, self.config, self.history)


def read(folder: str | Path) -> SavedRun:
    """What a run has recorded so far: its config, history, signals, and a fingerprint of its data.

    >>> import tempfile
    >>> config = tp.train.Config(spec="F(5)-F(10)", epochs=1, train_size=100, test_size=50)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     finished = tp.train.Run(config, folder, say=lambda line: None).run()
    ...     saved = tp.train.read(folder)
    >>> saved.epoch, saved.is_finished, saved.config == config
    (1, True, True)
    """
    facts = newest(folder).facts
    return SavedRun(
        folder=Path(folder),
        config=Config(**facts["config"]),
        history=tuple(facts["history"]),
        signals=tuple(facts["signals"]),
        data=facts["data"],
        classes=tuple(facts["samples"].get("classes", ())),
        versions=facts["versions"],
    )


def load(folder: str | Path, model: Module | None = None) -> nn.Sequential:
    """The trained network of a run, in evaluation mode, with its data normalisation in front: it
    takes images as they are in the data set.

    A network of your own is made by its class, which is imported from the file that the run has
    recorded. If that is not possible, because its class takes arguments or was defined in a
    notebook or in the program that trained it, pass one as `model`: it gets the trained weights.

    >>> import tempfile
    >>> config = tp.train.Config(spec="F(5)-F(10)", epochs=1, train_size=100, test_size=50)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = tp.train.Run(config, folder, say=lambda line: None)
    ...     finished = run.run()
    ...     net = tp.train.load(folder)
    >>> loss, error = tp.train.evaluate(net, run.test.images, run.test.labels)
    >>> error == run.history[-1]["test_error"]
    True
    """
    found = newest(folder)
    config = Config(**found.facts["config"])
    random_state = generator().bit_generator.state
    try:
        with use_backend("numpy"):
            own = _own_network(found, config, model)
            net = assembled(config, *_shape_and_classes(found), own)
    finally:
        generator().bit_generator.state = random_state  # first weights were drawn
    net.load_state_dict(found.arrays_of("model"))
    return net.eval()


def _own_network(found: Checkpoint, config: Config, model: Module | None) -> Module | None:
    """The network of the user's own that a run was made with, if it was; the same as then."""
    if config.net is None:
        if model is not None:
            got = f"a model for {found.path.parent}, whose network follows from its settings"
            raise StateError(got, "only a network of your own is given", "leave out model=")
        return None
    description = found.facts["network"]
    if model is None:
        import_home(config.net, description)
        model = make_network(config.net)
    check_same_network(describe(model), description, f"the run in {found.path.parent}")
    return model


def newest(folder: str | Path) -> Checkpoint:
    """The newest whole checkpoint of a run, or a StateError."""
    found, _ = checkpoint.newest(Path(folder))
    if found is None:
        got = f"{folder}, which has no checkpoint"
        rule = "a run leaves one after each epoch"
        raise StateError(got, rule, "the output directory of `tinyprop train` or of Run")
    return found


def _shape_and_classes(found: Checkpoint) -> tuple[Shape, int]:
    """The shape of a sample, and the number of classes."""
    samples = found.facts["samples"]
    if samples:
        return tuple(samples["shape"]), len(samples["classes"])
    # an older version did not record them: its networks begin with a normaliser of the samples, and
    # end with weights that have a row for each class
    arrays = found.arrays_of("model")
    layers = [int(name.removesuffix(".weight")) for name in arrays if _is_plain_weight(name)]
    return arrays["0.mean"].shape, len(arrays[f"{max(layers)}.weight"])


def _is_plain_weight(name: str) -> bool:
    return name.removesuffix(".weight").isdigit()
