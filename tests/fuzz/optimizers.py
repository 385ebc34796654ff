"""Several steps of an optimizer, with a schedule, against PyTorch's."""

from functools import cache
from typing import Any

import numpy as np

import tinyprop as tp

from .case import Case, Random, chance, choice, difference, integer, laid_out, scale_of, size
from .oracle import NEIGHBOURS, ULP, nudged, torch, torch_tensor


def settings(rng: Random, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"lr": float(10 ** rng.uniform(-3, 0))}
    if chance(rng, 0.5):
        found["weight_decay"] = float(rng.uniform(0.0, 0.3))
    if name == "SGD":
        found["momentum"] = choice(rng, [0.0, 0.9, float(rng.random())])
    if name != "SGD" and chance(rng, 0.5):
        found["eps"] = float(10 ** rng.uniform(-8, -1))
    if name == "RMSProp" and chance(rng, 0.5):
        found["alpha"] = float(rng.random())
    if name == "Adam" and chance(rng, 0.5):
        found["betas"] = (float(rng.random()), float(rng.random()))
    return found


def draw(rng: Random) -> Case:
    name = choice(rng, ["SGD", "RMSProp", "Adam"])
    how = settings(rng, name)
    dtype = choice(rng, ["float64", "float32"])
    shapes = [(), (size(rng, 1, 50_000),), (integer(rng, 1, 5), integer(rng, 1, 5))]
    starts = [laid_out(rng, np.asarray(rng.standard_normal(s)).astype(dtype)) for s in shapes]
    schedule = choice(rng, ["none", "halve", "plateau"])
    period = integer(rng, 1, 3)
    steps = integer(rng, 1, 8)
    errors = rng.random(steps).round(1)  # with ties
    saved_after = integer(rng, 0, steps)  # a new optimizer goes on from a state here
    seed = integer(rng, 0, 2**31)
    words = f"{steps} steps of {name}({how}) in {dtype}, schedule {schedule}({period}), "
    words += f"saved after {saved_after}"

    def gradients() -> list[list[Any]]:
        """Of each step and parameter; None for one that sits a step out."""
        random = np.random.default_rng(seed)
        found = []
        for _ in range(steps):
            row = [np.asarray(random.standard_normal(s)).astype(dtype) for s in shapes]
            found.append([None if random.random() < 0.1 else g for g in row])
        return found

    def ours() -> list[Any]:
        params = [tp.from_numpy(x.copy(order="K"), requires_grad=True) for x in starts]
        optimizer = getattr(tp.optim, name)(params, **how)
        kinds = {"halve": tp.optim.HalveEvery, "plateau": tp.optim.HalveOnPlateau}
        halving = kinds[schedule](period) if schedule in kinds else None
        for number, row in enumerate(gradients()):
            if number == saved_after:
                state, rate = optimizer.state_dict(), optimizer.lr
                optimizer = getattr(tp.optim, name)(params, **how)
                optimizer.load_state_dict(state)
                optimizer.lr = rate
            for p, g in zip(params, row, strict=True):
                p.grad = None if g is None else tp.tensor(g)
            optimizer.step()
            if halving is not None:
                halving.epoch_ended(optimizer, float(errors[number]))
        return [*(p.numpy() for p in params), np.array(optimizer.lr)]

    def theirs(dtype: str, starts: list[Any]) -> list[Any]:
        params = [torch_tensor(x, dtype).requires_grad_() for x in starts]
        kind = "RMSprop" if name == "RMSProp" else name
        optimizer = getattr(torch().optim, kind)(params, **how)
        rates = torch().optim.lr_scheduler
        halving = None
        if schedule == "halve":
            halving = rates.StepLR(optimizer, period, 0.5)
        if schedule == "plateau":
            # PyTorch waits for more than `patience` epochs
            halving = rates.ReduceLROnPlateau(
                optimizer, factor=0.5, patience=period - 1, threshold=0.0, eps=0.0
            )
        for number, row in enumerate(gradients()):
            for p, g in zip(params, row, strict=True):
                p.grad = None if g is None else torch_tensor(g, dtype)
            optimizer.step()
            if halving is not None:
                halving.step(*([float(errors[number])] if schedule == "plateau" else []))
        rate = np.array(optimizer.param_groups[0]["lr"])
        return [*(p.detach().numpy() for p in params), rate]

    def errors_nearby() -> list[float]:
        """The largest errors of PyTorch from starts moved by a unit in their last place: a gradient
        and the decay may cancel, and what is left is divided by its own size, so that a single
        error may be small by luck."""
        largest = [0.0] * len(names)
        for number in range(NEIGHBOURS):
            rng = np.random.default_rng([seed, number])
            rounded = theirs(dtype, [nudged(rng, x) for x in starts])
            errors = [scale_of(a - exact) for a, exact in zip(rounded, want(), strict=True)]
            largest = [max(pair) for pair in zip(largest, errors, strict=True)]
        return largest

    def complaint(torch_errors: list[float]) -> str | None:
        for what, a, exact, error in zip(names, got(), want(), torch_errors, strict=True):
            allowed = 10.0 * error if dtype == "float32" else 1e-9
            ulps = 16 * ULP[dtype] * (1.0 + scale_of(exact))
            if words := difference(what, a, exact, allowed + ulps):
                return words
        return None

    names = [*(f"parameter {s}" for s in shapes), "the learning rate"]
    got = cache(ours)
    want = cache(lambda: theirs("float64", starts))

    def check() -> str | None:
        same = zip(theirs(dtype, starts), want(), strict=True)
        words = complaint([scale_of(rounded - exact) for rounded, exact in same])
        if words is None or dtype == "float64":
            return words
        return complaint(errors_nearby())

    return Case(words, check)
