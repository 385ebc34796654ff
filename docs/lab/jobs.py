"""What the page asks Python for. Each job is a generator of answers, and takes notes meanwhile."""

import json
from collections.abc import Iterator
from functools import lru_cache

import formula
import lab
import training

from tinyprop.theory.stacks import Stack


@lru_cache(maxsize=8)
def stack_of(text: str) -> Stack:
    """The network of a setting: its theory is kept while only the layer shown changes."""
    setting = json.loads(text)
    setting["activation"] = activation_of(setting["activation"])
    return Stack(**setting)


def activation_of(given: str | dict) -> object:
    return given if isinstance(given, str) else own(given["formula"])


own = lru_cache(maxsize=32)(formula.activation)


def theory(setting: dict) -> Iterator[tuple[str, dict]]:
    stack = stack_of(json.dumps(setting["stack"]))
    yield "theory", lab.theory(stack, setting["layer"])


def network(setting: dict) -> Iterator[tuple[str, dict]]:
    stack = stack_of(json.dumps(setting["stack"]))
    yield from lab.measured(stack, setting["layer"], setting["seed"], setting["networks"])


def train(setting: dict) -> Iterator[tuple[str, dict]]:
    activation = activation_of(setting.pop("activation"))
    yield from training.train(activation=activation, **setting)


TOO_LARGE = (
    "The values of this network grow beyond what a computer can hold. Try fewer layers or a "
    "smaller scale."
)
JOBS = {"theory": theory, "network": network, "train": train}


def start(kind: str, text: str) -> Iterator[tuple[str, dict]]:
    return JOBS[kind](json.loads(text))


def step(job: Iterator, note: str | None) -> str:
    """The next answer as JSON, or null at the end, or what is wrong."""
    try:
        answer = job.send(None if note is None else json.loads(note))
    except StopIteration:
        answer = None
    except formula.FormulaError as error:
        answer = "error", {"formula": str(error)}
    except ArithmeticError:
        answer = "error", {"text": TOO_LARGE}
    except ValueError as error:  # got, rule and try, in lines of their own
        answer = "error", {"text": " ".join(str(error).split())}
    return json.dumps(answer, default=lambda value: value.tolist())
