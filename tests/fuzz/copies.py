"""Random networks, after a training step, copied, pickled and saved: the copy has the same outputs,
state and next step, bit for bit, and shares no memory."""

import copy
import pickle
import tempfile
from pathlib import Path
from typing import Any

import tinyprop as tp
from tests.helpers import trained
from tinyprop import nn

from .case import Case, Random, bit_difference, choice
from .networks import Model, draw_model, one_line


def by_deepcopy(net: nn.Module, model: Model) -> nn.Module:
    return copy.deepcopy(net)


def by_pickle(net: nn.Module, model: Model) -> nn.Module:
    return pickle.loads(pickle.dumps(net))


def by_state(net: nn.Module, model: Model) -> nn.Module:
    """A new network with the same layers and other weights, which then loads the state."""
    new = model.make()
    for p in new.parameters():
        p.data[...] += 1.0
    new.load_state_dict(net.state_dict())
    return counted_as(net, new)


def by_file(net: nn.Module, model: Model) -> nn.Module:
    new = model.make()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.safetensors"
        tp.save(path, net.state_dict())
        new.load_state_dict(tp.load(path))
    return counted_as(net, new)


def counted_as(net: nn.Module, new: nn.Module) -> nn.Module:
    """What is no tensor is in no state: a user's counter goes along by hand."""
    for old_part, new_part in zip(net.modules(), new.modules(), strict=True):
        if hasattr(old_part, "calls"):
            new_part.calls = old_part.calls
    return new


WAYS = (by_deepcopy, by_pickle, by_state, by_file)


def draw(rng: Random) -> Case:
    model = draw_model(rng)
    way = choice(rng, WAYS)
    words = f"{way.__name__}, then outputs and a step on {model.x.shape}: {one_line(model.make())}"

    def behaviour(net: nn.Module) -> dict[str, Any]:
        """Outputs in both modes, and what a training step makes of the network. The same random
        numbers are drawn each time."""
        tp.manual_seed(1)
        x = tp.tensor(model.x)
        with tp.no_grad():
            training = net(x).numpy()
            with nn.evaluating():
                evaluated = net(x).numpy()
        losses, state = trained(net, model.x, model.labels, steps=1, lr=0.01)
        return {"training": training, "evaluated": evaluated, "losses": losses, **state}

    def check() -> str | None:
        net = model.make()
        trained(net, model.x, model.labels, steps=1, lr=0.01)
        new = way(net, model)
        before = {name: value.copy() for name, value in net.state_dict().items()}
        if complaint := bit_difference(new.state_dict(), before):
            return f"the state of the copy: {complaint}"
        if one_line(new) != one_line(net):
            return f"the copy is {one_line(new)}"
        of_copy = behaviour(new)
        if complaint := bit_difference(net.state_dict(), before):
            return f"a step of the copy changed the original: {complaint}"
        if complaint := bit_difference(of_copy, behaviour(net)):
            return f"of the copy {complaint}"
        return None

    return Case(words, check)
