"""The projects: an engine of the student's own, which grows from lesson to lesson. Lesson 1 writes
it, lesson 2 trains a network with it, lesson 6 builds NormProp's layer on it. Each part is checked
by itself: whoever has no engine of an earlier part goes on with a given one (given.py)."""

import ast
import io
import linecache
import math
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

import given
import tinyprop as tp
import tinyprop.functional as F
from checks import NotYet, draws, exercise, expect, fresh, near, numbers, pieces, right, tell

C2, C1 = 1 / math.sqrt(2 * math.pi), math.sqrt((1 - 1 / math.pi) / 2)
GIVEN = {1: given.AfterLesson1, 2: given.AfterLesson2}


# What carries an engine from one lesson to the next


def file_of(lesson: int) -> Path:
    return Path(f"mine_{lesson}.py")


def keep(lesson: int, engine: type) -> None:
    """Write the class into a file, from which `engine` of a later lesson takes it."""
    if not (isinstance(engine, type) and functions_in(engine)):
        print(f"keep takes a class that has methods, not {engine!r}")
        return
    path, text = file_of(lesson), source_of(engine)
    path.write_text(text, encoding="utf-8")
    tell("keep", path.name, text)
    wrong = what_is_lost(engine, path)
    print(f"{path} has your engine" if wrong is None else f"{path} is not complete: {wrong}")


def what_is_lost(engine: type, path: Path) -> str | None:
    """What would be missing in the next lesson; None if nothing is."""
    try:
        with redirect_stdout(io.StringIO()):  # what `engine` says of an earlier part
            kept = load(path)
    except Exception as error:
        return f"it stops with {type(error).__name__}: {error}"
    lost = [name for name in vars(engine) if name not in vars(kept)]
    if lost:
        return f"define {', '.join(lost)} inside of the class"
    return None


def load(path: Path) -> type:
    names: dict[str, Any] = {"__name__": path.stem}
    exec(compile(path.read_text(encoding="utf-8"), str(path.resolve()), "exec"), names)
    found: type = names["Array"]
    return found


def engine(lesson: int) -> type:
    """The class that was kept in this lesson; without one, a given class that does the same."""
    path = file_of(lesson)
    if not path.exists():
        return GIVEN[lesson]
    kept = load(path)
    print(f"your engine, from {path}")
    return kept


def source_of(engine: type) -> str:
    """The class as its cell defines it, after everything that it uses, wherever that is defined."""
    (first, *_) = functions_in(engine)
    names = first.__globals__
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        if name not in names or name in parts:
            return
        parts[name] = ""  # what uses itself needs no second definition
        text = definition(name, names)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name):
                add(node.id)
        del parts[name]  # so that it comes after what it uses
        parts[name] = text

    add(engine.__name__)
    if engine.__name__ != "Array":
        parts["Array"] = f"Array = {engine.__name__}"
    return "\n\n\n".join(filter(None, parts.values())) + "\n"


def functions_in(thing: Any) -> list[Any]:
    """A function itself, or the methods that a class defines."""
    if isinstance(thing, FunctionType):
        return [thing]
    if isinstance(thing, type):
        return [value for value in vars(thing).values() if isinstance(value, FunctionType)]
    return []


def definition(name: str, names: dict[str, Any]) -> str:
    """What gives this name its value; nothing for what is no module, number, function or class."""
    thing = names[name]
    if isinstance(thing, ModuleType):
        return f"import {thing.__name__} as {name}"
    if isinstance(thing, (int, float, str, tuple)):
        return constant(name, thing)
    functions = functions_in(thing)
    if not functions or functions[0].__globals__ is not names:
        return imported(name, thing)
    text = "".join(linecache.getlines(functions[0].__code__.co_filename))
    for node in reversed(ast.parse(text).body):
        targets = [ast.unparse(target) for target in getattr(node, "targets", [])]
        if getattr(node, "name", None) == name or targets == [name]:
            decorators = getattr(node, "decorator_list", [])
            start = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            return "\n".join(text.split("\n")[start - 1 : node.end_lineno])
    return ""


def constant(name: str, thing: Any) -> str:
    text = repr(thing.item() if isinstance(thing, np.generic) else thing)
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):  # inf, or a tuple of other things
        return f"{name} = float({text!r})" if isinstance(thing, float) else ""
    return f"{name} = {text}"


def imported(name: str, thing: Any) -> str:
    """The line that imports a thing from the module that has it."""
    module = "numpy" if isinstance(thing, np.ufunc) else getattr(thing, "__module__", None)
    has = vars(sys.modules.get(str(module), math))
    for original in (name, getattr(thing, "__name__", None), getattr(thing, "_name", None)):
        if has.get(str(original)) is thing and module != "__main__":
            return f"from {module} import {original} as {name}"
    return ""


# What the checks of all parts share


@contextmanager
def in_words(doing: str) -> Iterator[None]:
    """Tell in words what stops the student's code."""
    try:
        yield
    except NotYet:
        raise
    except RecursionError:
        raise NotYet(
            f"{doing} calls itself too often: Python allows about 1,000 nested calls; "
            "use the loop of exercise 1.3"
        ) from None
    except Exception as error:
        raise NotYet(f"{doing} stops with {type(error).__name__}: {error}") from error


def compute(name: str, function: Callable[..., Any], *inputs: Any) -> Any:
    """The result of a step of the student's engine, which must be an array of it."""
    with in_words(name):
        out = function(*inputs)
    is_hole = out is None or out is ...
    expect(not is_hole, f"{name} returns nothing yet: fill in the hole")
    expect(
        hasattr(out, "value") and hasattr(out, "backward"),
        f"{name} returns {type(out).__name__}: return an Array, so that backward knows of the step",
    )
    return out


def gradients(name: str, out: Any, leaves: list[Any], g: Any) -> list[Any]:
    """What backward finds for the leaves if g arrives at `out`."""
    with in_words(f"the gradient of {name}"):
        type(out)(0.0, (out,), given.hands_on(np.array(g))).backward()
    for leaf in leaves:
        has_gradient = getattr(leaf, "grad", None) is not None
        expect(has_gradient, f"{name}: backward leaves no gradient of an input in its .grad")
        found = numbers(leaf.grad)
        expect(
            found.shape == leaf.value.shape,
            f"{name}: an input of shape {leaf.value.shape} gets a gradient of shape {found.shape}",
        )
    return [np.array(leaf.grad) for leaf in leaves]


def by_tinyprop(function: Callable[..., tp.Tensor], inputs: list[Any], g: Any) -> list[Any]:
    """A value, and its gradients, as tinyprop has them."""
    leaves = [tp.tensor(x, requires_grad=True) for x in inputs]
    out = function(*leaves)
    return [out.numpy(), *(x.numpy() for x in tp.grad(out, leaves, g))]


@contextmanager
def without_tinyprop() -> Iterator[None]:
    call = tp.Op.__call__
    error = NotYet("it computes with tinyprop: write the rules yourself, with NumPy")
    tp.Op.__call__ = given.refuses(error)  # type: ignore[method-assign]
    try:
        yield
    finally:
        tp.Op.__call__ = call  # type: ignore[method-assign]


# Lesson 1: an engine

ELEMENTWISE: dict[str, tuple[Callable[..., Any], int]] = {
    "a + b": (operator.add, 2),
    "a - b": (operator.sub, 2),
    "a * b": (operator.mul, 2),
    "a.tanh()": (lambda a: a.tanh(), 1),
}
NO_GRADIENT = "{}: the gradient that arrives is missing; multiply the slope by it"


def usual_slopes(name: str, a: Any, b: Any, g: Any) -> list[list[tuple[Any, str]]]:
    """The usual mistakes in a step's gradients, input by input."""
    missing = NO_GRADIENT.format(name)
    if name == "a - b":
        return [[], [(g, "a - b: a difference flips the sign for its second term")]]
    if name == "a * b":
        own = "a * b: a product multiplies the gradient by the *other* factor"
        return [[(g * a, own), (b, missing)], [(g * b, own), (a, missing)]]
    if name == "a.tanh()":
        t = np.tanh(a)
        square = "a.tanh(): the slope is 1 - tanh(a)^2, not 1 - a^2"
        passed = "a.tanh(): the gradient passes as it is; multiply it by the slope"
        return [[(g * (1 - a * a), square), (1 - t * t, missing), (g, passed)]]
    return [[], []]


def check_step(engine: Any, name: str) -> None:
    step, count = ELEMENTWISE[name]
    inputs, g = [draws(3, 2, seed=i) for i in range(count)], draws(3, 2, seed=7)
    with without_tinyprop():
        leaves = [make(engine, x) for x in inputs]
        out = compute(name, step, *leaves)
        found = gradients(name, out, leaves, g)
    function = F.tanh if count == 1 else step
    value, *slopes = by_tinyprop(function, inputs, g)
    right(out.value, value, f"the value of {name} is wrong")
    mistakes = usual_slopes(name, inputs[0], inputs[-1], g)
    for letter, got, wanted, wrong in zip("ab", found, slopes, mistakes, strict=False):
        right(got, wanted, f"{name}: the gradient with respect to {letter} is wrong", *wrong)
    for letter, leaf, x in zip("ab", leaves, inputs, strict=False):
        right(leaf.value, x, f"{name} changes the numbers of {letter}: return a new Array")


def make(engine: Any, value: Any) -> Any:
    with in_words("Array(...)"):
        made = engine(np.array(value))
    expect(hasattr(made, "value"), "an Array has its numbers in .value")
    right(made.value, value, "Array(x).value is not x")
    return made


def check_custom_step(engine: Any) -> None:
    """What later lessons add their rules by."""
    x, g = draws(3), draws(3, seed=1)
    with without_tinyprop():
        a = make(engine, x)
        with in_words("Array(value, inputs, pull)"):
            engine(2 * x, (a,), given.doubled).backward()
        right(
            numbers(a.grad),
            np.full(3, 2.0),
            "a step Array(value, (a,), lambda g: (2 * g,)) must give a the gradient 2, as backward "
            "starts with a gradient of ones and hands on what pull returns",
            (np.ones(3), "backward must hand on what pull returns, not the gradient itself"),
            (np.zeros(3), "backward leaves a gradient at 0: does it start with ones?"),
        )
        a = make(engine, x)
        (found,) = gradients("a step", engine(2 * x, (a,), given.doubled), [a], g)
    right(found, 2 * g, "a step's pull must get the gradient of its result")


def check_reuse(engine: Any) -> None:
    x, y, g = draws(4), draws(4, seed=1), draws(4, seed=2)
    with without_tinyprop():
        a = make(engine, x)
        (twice,) = gradients("a + a", compute("a + a", operator.add, a, a), [a], g)
        right(
            twice,
            2 * g,
            "the gradient of a + a is wrong",
            (g, "in a + a only one of two contributions counts: add them, += and not ="),
        )

        a, k = make(engine, x), make(engine, y)
        b = compute("a * b", operator.mul, a, k)
        (reused, _) = gradients("b + b", compute("a + b", operator.add, b, b), [a, k], g)
        between = numbers(getattr(b, "grad", None))
        right(
            reused,
            2 * g * y,
            "with b = a * k, the gradient of b + b is wrong",
            (
                g * y,
                "a reused value got half its gradient: it hands on before all contributions to it "
                "have arrived, so list the inputs first",
            ),
            (
                3 * g * y,
                "a reused value hands its gradient on each time that a contribution arrives: wait "
                "for all of them, then hand on once",
            ),
        )

        right(
            between,
            2 * g,
            "the gradient of a value in between, b in b + b, must be in its .grad, too",
        )

        a, b = make(engine, x), make(engine, y)
        total = compute("a + b", operator.add, compute("a + b", operator.add, a, b), a)
        both = gradients("(a + b) + a", total, [a, b], g)
        shared = (
            "two values share one gradient array, and += changes both: write x.grad = x.grad + g"
        )
        right(both[1], g, "the gradient of (a + b) + a with respect to b is wrong", (2 * g, shared))
        right(
            both[0],
            2 * g,
            "the gradient of (a + b) + a with respect to a is wrong",
            (3 * g, shared),
        )


def check_again(engine: Any) -> None:
    """Calls of backward do not add up."""
    x, y = draws(4), draws(4, seed=1)
    with without_tinyprop():
        a, b = make(engine, x), make(engine, y)
        with in_words("a second call of backward"):
            inside = a * b
            result = inside.tanh()
            result.backward()
            first = numbers(a.grad).copy()
            result.backward()
            again = numbers(a.grad)
            (a * a).backward()
            other = numbers(a.grad)
    right(
        again,
        first,
        "a second call of backward gives other gradients",
        (2 * first, "the gradient is accumulated twice: a second call of backward must begin at 0"),
        (3 * first, "the gradient is accumulated twice: values in between must begin at 0, too"),
    )
    right(
        other,
        2 * x,
        "the gradient of another result is wrong",
        (2 * x + first, "the gradient of an earlier result is still in it: backward begins at 0"),
    )


def check_deep(engine: Any) -> None:
    with without_tinyprop():
        first = last = make(engine, np.ones(2))
        with in_words("backward through 5,000 steps"):
            for _ in range(5_000):
                last = last + first
            last.backward()
    right(first.grad, np.full(2, 5_001.0), "it loses contributions in a chain of 5,000 steps")


@exercise(
    "1.5",
    "Each step knows the gradients of its inputs from that of its result: for a product, "
    "lambda g: (g * other.value, g * self.value).",
    "backward lists the inputs first (the loop of 1.3), sets all gradients to zeros, that of the "
    "result to ones, and walks through the list from its end.",
    "At a value with inputs: for source, g in zip(value.inputs, value.pull(value.grad)): "
    "source.grad = source.grad + g.",
    function=False,  # a class
    again=True,
)
def own_engine(answer: Any) -> None:
    expect(isinstance(answer, type), "the answer is the class: pass its name, without ()")
    check_custom_step(answer)
    for name in ELEMENTWISE:
        check_step(answer, name)
    check_reuse(answer)
    check_again(answer)
    if fresh.get() is None:
        check_deep(answer)


# Lesson 2: matrices, and a network


def row_sum(engine: Any) -> None:
    x, row, g = draws(5, 3), draws(3, seed=1), draws(5, 3, seed=2)
    a, b = make(engine, x), make(engine, row)
    out = compute("a + row", operator.add, a, b)
    right(out.value, x + row, "the value of a + row is wrong: the row is added to each row of a")
    summed = "a row that is added to every row of a gets the sum of the gradients over the rows"
    with adding(summed):
        found = gradients("a + row", out, [a, b], g)
    right(found[0], g, "a + row: the gradient with respect to a is wrong")
    right(
        found[1],
        g.sum(axis=0),
        f"{summed}, axis=0",
        (g.mean(axis=0), "a + row: add the contributions of the rows up; do not average them"),
    )
    for shape in ((5, 3), (3,)):
        x, y, g = (draws(*shape, seed=i) for i in range(3))
        leaves = [make(engine, x), make(engine, y)]
        with adding(f"a + b of two arrays of one shape, such as {shape}, must work as before"):
            same = gradients("a + b", compute("a + b", operator.add, *leaves), leaves, g)
            right(same, np.array([g, g]), "another gradient")
    x, row, g = draws(3, 3), draws(3, seed=1), draws(3, 3, seed=2)
    leaves = [make(engine, x), make(engine, row)]
    with adding("the second array counts as a row by its shape, also with as many rows as columns"):
        square = gradients("a + row", compute("a + row", operator.add, *leaves), leaves, g)
        right(square[1], g.sum(axis=0), "another gradient")


@contextmanager
def adding(rule: str) -> Iterator[None]:
    """Tell the rule that is broken, too."""
    try:
        yield
    except NotYet as error:
        raise NotYet(f"{rule} ({error})") from error


def product(engine: Any) -> None:
    x, y, g = (draws(4, 4, seed=i) for i in range(3))
    a, b = make(engine, x), make(engine, y)
    out = compute("a @ b", operator.matmul, a, b)
    right(out.value, x @ y, "the value of a @ b is wrong", (x * y, "a @ b is the matrix product"))
    to_a, to_b = gradients("a @ b", out, [a, b], g)
    swapped = "a @ b: the two gradients are swapped"
    transposed = "a @ b: transpose the other factor"
    order = "a @ b: the order of the factors counts; look at the shapes"
    right(
        to_a,
        g @ y.T,
        "a @ b: the gradient with respect to a is wrong",
        (x.T @ g, swapped),
        (g @ y, transposed),
        (y.T @ g, order),
        (y, NO_GRADIENT.format("a @ b")),
    )
    right(
        to_b,
        x.T @ g,
        "a @ b: the gradient with respect to b is wrong",
        (g @ y.T, swapped),
        (x @ g, transposed),
        (g @ x.T, order),
    )
    rectangular = [draws(3, 4), draws(4, 2, seed=1)]
    a, b = (make(engine, value) for value in rectangular)
    gradients("a @ b", compute("a @ b", operator.matmul, a, b), [a, b], draws(3, 2, seed=2))


def cross_entropy(engine: Any) -> None:
    logits, labels = 2 * draws(6, 4), np.array([0, 3, 1, 1, 2, 0])
    one_hot = np.eye(4)[labels]
    value, wanted = by_tinyprop(lambda z: F.cross_entropy(z, labels), [logits], np.ones(()))
    z = make(engine, logits)
    name = "cross_entropy(labels)"
    out = compute(name, lambda z: z.cross_entropy(labels), z)
    right(
        out.value,
        value,
        "the value of cross_entropy is wrong",
        (6 * value, "cross_entropy is the mean over the points, not their sum"),
        (-value, "cross_entropy is minus the log of the probability of the right class"),
    )
    (found,) = gradients(name, out, [z], np.array(3.0))
    p = wanted * 6 + one_hot
    right(
        found,
        3 * wanted,
        "the gradient of cross_entropy is wrong",
        (wanted, NO_GRADIENT.format("cross_entropy")),
        (18 * wanted, "cross_entropy: the loss is a mean, so divide its gradient by the points"),
        (
            6 * wanted,
            "cross_entropy: divide by the points, and multiply by the gradient that arrives",
        ),
        (p / 2, "cross_entropy: subtract 1 at the right class"),
        (-3 * wanted, "cross_entropy: the sign of its gradient is wrong"),
    )
    with np.errstate(all="ignore"):
        large = compute(name, lambda z: z.cross_entropy(labels), make(engine, 1000 * logits))
        finite = np.isfinite(np.asarray(large.value, dtype=float)).all()
    expect(finite, "logits of 1,000 overflow: subtract the largest logit of each row first")
    wanted = F.cross_entropy(tp.tensor(1000 * logits), labels).numpy()
    exact = "for logits of 1,000 the value is wrong: take the log of the sum, not of each p"
    right(large.value, wanted, exact)


@exercise(
    "2.5",
    "The rules are those of this lesson: 2.1 for the product, 2.2 for the cross-entropy; a "
    "repeated row gets a sum over rows.",
    "a @ b: lambda g: (g @ other.value.T, self.value.T @ g). In +, the second gradient is g if the "
    "shapes are equal, otherwise g.sum(axis=0).",
    "cross_entropy returns type(self)(loss, (self,), lambda g: (g * (p - one_hot) / n,)).",
    function=False,  # a class
    again=True,
)
def engine_of_matrices(answer: Any) -> None:
    expect(isinstance(answer, type), "the answer is the class: pass its name, without ()")
    is_given = issubclass(answer, given.AfterLesson2)
    expect(not is_given, "that is what lesson 6 gives: write these rules yourself")
    for rule in ("__matmul__", "__add__", "cross_entropy"):
        expect(hasattr(answer, rule), f"the class has no {rule} yet")
    product(answer)
    row_sum(answer)
    cross_entropy(answer)
    start = initial_weights()
    x, labels = draws(9, 2, seed=9), np.arange(9) % 3
    values = [make(answer, value) for value in start]
    with in_words("a network"):
        w1, b1, w2, b2 = values
        loss = ((make(answer, x) @ w1 + b1).tanh() @ w2 + b2).cross_entropy(labels)
        loss.backward()
    _, *wanted = by_tinyprop(lambda *w: network_loss(x, labels, *w), start, np.ones(()))
    for name, found, one in zip(("w1", "b1", "w2", "b2"), values, wanted, strict=True):
        right(found.grad, one, f"in a network with a hidden layer, the gradient of {name} is wrong")


def initial_weights() -> list[np.ndarray]:
    return [draws(2, 5), draws(5, seed=1), draws(5, 3, seed=2), draws(3, seed=3)]


def network_loss(
    x: Any, labels: Any, w1: Any, b1: Any, w2: Any, b2: Any, hidden: Any = F.tanh
) -> tp.Tensor:
    return F.cross_entropy(hidden(tp.tensor(x) @ w1 + b1) @ w2 + b2, labels)


def descend(
    x: Any,
    labels: Any,
    start: list[np.ndarray],
    rate: float,
    steps: int,
    frozen: tuple[int, ...] = (),
    adds_up: bool = False,
    hidden: Any = F.tanh,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The losses and the parameters of gradient descent, by tinyprop; with mistakes, if wanted."""
    weights, losses = [w.copy() for w in start], []
    total = [np.zeros_like(w) for w in start]
    for _ in range(steps):
        value, *found = by_tinyprop(
            lambda *w: network_loss(x, labels, *w, hidden=hidden), weights, np.ones(())
        )
        losses.append(float(value))
        total = [t + g if adds_up else g for t, g in zip(total, found, strict=True)]
        weights = [
            w if i in frozen else w - rate * g
            for i, (w, g) in enumerate(zip(weights, total, strict=True))
        ]
    return np.array(losses), weights


@exercise(
    "2.6",
    "In each step: make Arrays of the parameters, compute the loss, call backward, and move each "
    "parameter against its gradient.",
    "weights = [Array(p) for p in start]; in a step, loss = ((Array(x) @ w1 + b1).tanh() @ w2 + "
    "b2).cross_entropy(labels); loss.backward(); weights = [Array(w.value - rate * w.grad) ...].",
    function=False,  # a class and a function
    again=True,
)
def own_training(answer: Any) -> None:
    engine, train = pieces(answer, 2, "the class and the function train")
    expect(isinstance(engine, type) and callable(train), "the answer is (Array, train)")
    x, labels, start = draws(9, 2, seed=9), np.arange(9) % 3, initial_weights()
    rate, steps = 0.5, 5
    calls: list[Any] = []
    original = getattr(engine, "backward", None)
    expect(original is not None, "the class has no backward")
    handed = [w.copy() for w in start]
    had_own = "backward" in vars(engine)
    engine.backward = given.counts(original, calls)  # type: ignore[attr-defined]
    try:
        with in_words("train"):
            out = train(x.copy(), labels.copy(), handed, rate, steps)
    finally:
        if had_own:
            engine.backward = original  # type: ignore[attr-defined]
        else:
            del engine.backward  # type: ignore[attr-defined]
    is_hole = out is None or out is ...
    expect(not is_hole, "train returns nothing yet: fill in the hole")
    losses, weights = pieces(out, 2, "the losses and the four parameters")
    weights = pieces(weights, 4, "the four parameters")
    weights = [getattr(w, "value", w) for w in weights]
    expect(calls, "the backward of your engine is not called: let it compute the gradients")
    once = len(calls) == steps
    expect(once, f"backward is called {len(calls)} times in {steps} steps; once in each is enough")
    kept = all(np.array_equal(a, b) for a, b in zip(handed, start, strict=True))
    expect(kept, "train changes the arrays that it was given: work on copies")
    count = np.size(losses)
    expect(count == steps, f"{steps} losses are expected, one before each step, not {count}")

    wanted_losses, wanted = descend(x, labels, start, rate, steps)
    for found, why in training_mistakes(x, labels, start, rate, steps):
        differs = any(not near(a, b) for a, b in zip(found, wanted, strict=True))
        is_it = all(near(a, b) for a, b in zip(weights, found, strict=True))
        expect(not (differs and is_it), why)
    for name, got, one in zip(("w1", "b1", "w2", "b2"), weights, wanted, strict=True):
        right(got, one, f"after {steps} steps {name} is not what tinyprop has")
    after = descend(x, labels, start, rate, steps + 1)[0][1:]
    right(
        losses,
        wanted_losses,
        "the losses are not those of tinyprop",
        (after, "these are the losses after each step; note each before its step"),
    )


def training_mistakes(x: Any, labels: Any, start: Any, rate: float, steps: int) -> Iterator[Any]:
    """What the usual mistakes lead to."""

    def ends(rate: float = rate, steps: int = steps, **mistake: Any) -> list[np.ndarray]:
        return descend(x, labels, start, rate, steps, **mistake)[1]

    yield ends(-rate), "the steps go uphill: move against the gradient"
    yield ends(frozen=(1, 3)), "only the weights learn: move the biases, too"
    yield ends(frozen=(0, 1)), "only the second layer learns: move w1 and b1, too"
    yield (
        ends(frozen=(0, 1, 2, 3)),
        "the parameters never change: use the new ones in the next step",
    )
    yield ends(steps=1), "every step starts from the same parameters: use the new ones in the next"
    yield ends(adds_up=True), "gradients of earlier steps are still in the gradient: it adds up"
    yield ends(1.0), "the steps do not depend on the rate as they should: w - rate * gradient"
    yield ends(hidden=lambda u: u), "the hidden units need their tanh"


# Lesson 6: NormProp's layer


def paper_layer(x: Any, w: Any, gamma: Any, beta: Any, length: Any = None) -> tp.Tensor:
    if length is None:
        length = F.sqrt((w * w).sum(axis=1))
    return (F.relu(gamma * (x @ w.T) / length + beta) - C2) / C1


LAYERS: list[tuple[Callable[..., tp.Tensor], str]] = [  # usual mistakes
    (
        lambda x, w, gamma, beta: paper_layer(x, w, gamma, beta, (w * w).sum(axis=1)),
        "your layer divides by |w|^2: take the root of the sum of squares",
    ),
    (
        lambda x, w, gamma, beta: paper_layer(x, w, gamma, beta, F.sqrt((w * w).sum())),
        "your layer divides by the length of all weights: each unit has its own",
    ),
    (
        lambda x, w, gamma, beta: paper_layer(x, w, gamma, beta, 1.0),
        "your layer does not divide by the length of the weights",
    ),
    (
        lambda x, w, gamma, beta: F.relu(gamma * (x @ w.T) / F.sqrt((w * w).sum(axis=1)) + beta),
        "subtract c2 and divide by c1",
    ),
    (
        lambda x, w, gamma, beta: paper_layer(x, w, gamma, beta) / C1,
        "your layer divides by c1^2, the variance: divide by c1, the standard deviation",
    ),
    (
        lambda x, w, gamma, beta: paper_layer(x, w, gamma, beta) + C2 / C1 - C2,
        "subtract c2 before the division by c1",
    ),
    (
        lambda x, w, gamma, beta: (
            gamma * paper_layer(x, w, tp.ones(5, dtype="float64"), 0.0) + beta
        ),
        "gamma and beta stand inside the activation",
    ),
    (
        lambda x, w, gamma, beta: (
            (gamma * (x @ w.T) / F.sqrt((w * w).sum(axis=1)) + beta - C2) / C1
        ),
        "the activation is missing",
    ),
]


@exercise(
    "6.5",
    "You may write the layer as one step: its value by exercise 6.1, and a function that returns "
    "four gradients. Or teach your class relu, a division and the lengths of rows, and put them "
    "together.",
    "The length of a row, |w|, has the slope w / |w|. A row like gamma or beta, which is used in "
    "every row of u, gets the sum over the rows.",
    "With e = w / |w|, s = x @ e.T and G the gradient at u: gamma gets (G * s).sum(axis=0), beta "
    "gets G.sum(axis=0), x gets (G * gamma) @ e; and w gets A minus its part along e in each row, "
    "with A = (G * gamma).T @ x / |w|.",
    function=False,  # a class and a function
    again=True,
)
def own_layer(answer: Any) -> None:
    engine, layer = pieces(answer, 2, "the class and the function that is the layer")
    expect(
        isinstance(engine, type) and callable(layer), "the answer is (Array, normprop_of_arrays)"
    )
    inputs = [draws(8, 4), 3 * draws(5, 4, seed=1), draws(5, seed=2), draws(5, seed=3)]
    g = draws(8, 5, seed=4)
    leaves = [make(engine, x) for x in inputs]
    out = compute("the layer", layer, *leaves)
    value, *wanted = by_tinyprop(paper_layer, inputs, g)
    wrong = [(by_tinyprop(layer, inputs, g)[0], why) for layer, why in LAYERS]
    right(out.value, value, "it is not the paper's equation", *wrong)

    names = ("x", "w", "gamma", "beta")
    found = dict(zip(names, gradients("the layer", out, leaves, g), strict=True))
    to_x, to_w, to_gamma, to_beta = wanted
    x, w, gamma, _ = inputs
    length = np.linalg.norm(w, axis=1)[:, None]
    on = np.where(value > -C2 / C1 + 1e-12, g / C1, 0.0)  # the gradient at u
    alone = (on * gamma).T @ x / length
    right(
        found["x"],
        to_x,
        "the gradient with respect to x is wrong",
        (g / C1 * gamma @ (w / length), "a unit that is off passes no gradient: ReLU's slope is 0"),
        (C1 * to_x, "the gradient forgets the division by c1"),
        (on @ (w / length), "the gradient with respect to x forgets gamma"),
        (on * gamma @ w, "the gradient with respect to x forgets the division by |w|"),
    )
    right(
        found["w"],
        to_w,
        "the gradient with respect to w is wrong",
        (
            alone,
            "the length |w| depends on w, too: the gradient must be orthogonal to each row of w",
        ),
        (alone * length, "the length |w| is a part of the function: its slope is missing twice"),
        (to_w * length, "longer weights turn more slowly: divide the gradient of w by |w|"),
    )
    right(found["gamma"], to_gamma, "the gradient with respect to gamma is wrong")
    right(found["beta"], to_beta, "the gradient with respect to beta is wrong")


@exercise(
    "6.6",
    "Call your layer with gamma of ones and beta of zeros. For a gradient g of the outputs, "
    "multiply the outputs by Array(g), and call backward.",
    "out.value.mean(), out.value.std(), and the root of (x.grad ** 2).mean() / (g ** 2).mean().",
)
def own_measurement(answer: Any) -> None:
    inputs, units, samples = 30, 30, 200
    x, w = draws(samples, inputs), draws(units, inputs, seed=1)
    g = draws(samples, units, seed=2)
    ones, zeros = np.ones(units), np.zeros(units)
    out, to_x, to_w, *_ = by_tinyprop(paper_layer, [x, w, ones, zeros], g)
    mean, std, gain = pieces(
        answer(x, w, g), 3, "the mean and the standard deviation of all outputs, and the gain"
    )
    right(
        mean,
        out.mean(),
        f"the mean of all outputs is {out.mean():.4f} here",
        (out.mean() * C1 + C2, "that is the mean of ReLU: normprop subtracts c2 and divides by c1"),
    )
    right(
        std,
        out.std(),
        f"the standard deviation of all outputs is {out.std():.4f} here",
        (out.var(), "that is the variance: take its root"),
        (out.std(axis=0).mean(), "take the standard deviation of all outputs together"),
        (math.sqrt((out**2).mean()), "that is the root mean square: subtract the mean first"),
    )
    wanted = math.sqrt((to_x**2).mean() / (g**2).mean())
    _, plain, _, *_ = by_tinyprop(paper_layer, [x, w, ones, zeros], np.ones_like(g))
    for_weights = math.sqrt((to_w**2).mean() / (g**2).mean())
    right(
        gain,
        wanted,
        f"the gain of this gradient is {wanted:.4f}",
        (wanted**2, "that is the gain of the mean square: take its root"),
        (1 / wanted, "it is upside down: the gradient of x over that of the outputs"),
        (for_weights, "that is the gradient of the weights; take that of the input"),
        (
            math.sqrt((plain**2).mean() / (g**2).mean()),
            "backward must start with g: multiply the outputs by Array(g)",
        ),
        (math.sqrt((to_x**2).mean()), "divide by the size of g"),
    )
