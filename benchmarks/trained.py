"""Training steps that reach every override of `kernels/`: networks of the paper, and what else
users train."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tinyprop import functional as F
from tinyprop import nn, optim
from tinyprop.engine.backward import grad
from tinyprop.engine.random import manual_seed
from tinyprop.engine.tensor import Tensor
from tinyprop.engine.threads import blas_threads, cores, thread_limit
from tinyprop.nn.layers import glorot
from tinyprop.nn.module import Module
from tinyprop.train import TrainingStep

from .cases import LEARNING, Case
from .workers import Work

FEW_CHANNELS = "C(16,3,1,1)-C(16,3,1,1)-P(2,2,0,max)-C(10,1,1,0)-P(16,16,0,avg)"
STRIDED = "C(32,5,2,2)-C(64,5,2,2)-C(10,1,1,0)-P(8,8,0,avg)"
LARGE = "784-1024-1024-10"
SMALL = "784-100-10"
# what a step is done with: a network and an optimizer of its parameters
Optimizer = Callable[[Module], optim.Optimizer]


@dataclass(frozen=True)
class Program:
    name: str
    start: Callable[[], Work]  # makes a step ready
    threads: int = 1


def sgd(net: Module) -> optim.Optimizer:
    return optim.SGD(net.parameters(), **LEARNING)


def rmsprop(net: Module) -> optim.Optimizer:
    return optim.RMSProp(net.parameters())


def adam(net: Module) -> optim.Optimizer:
    return optim.Adam(net.parameters())


def trained(
    case: Case, threads: int = 1, optimizer: Optimizer = sgd, net: Module | None = None
) -> Work:
    """A step on the images and labels of a case, of its network or of another one."""
    net = net or case.build()
    x, labels = case.data()
    step = TrainingStep(net, optimizer(net), threads=threads)
    return lambda: float(step(x, labels))


class Products(Module):
    """Two layers written with `@`, as in a first lesson."""

    def __init__(self, inputs: int, hidden: int, outputs: int):
        manual_seed(0)
        self.first = glorot(inputs, hidden)
        self.second = glorot(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x @ self.first) @ self.second


def without_biases(inputs: int, hidden: int, outputs: int) -> Module:
    manual_seed(0)
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, outputs, bias=False)
    )


def gradient_penalty(case: Case) -> Work:
    """A step with the squared length of the loss's gradient with respect to the images in the loss:
    its gradient takes gradients of gradients."""
    net = case.build()
    x, labels = case.data()
    optimizer = sgd(net)

    def step() -> float:
        images = Tensor(x, requires_grad=True)
        with thread_limit(1), blas_threads(1):
            loss = F.cross_entropy(net(images), labels)
            (slope,) = grad(loss, [images], create_graph=True)
            whole = loss + F.sum(slope * slope)
            optimizer.zero_grad()
            whole.backward()
            optimizer.step()
        return float(whole.data)

    return step


def programs() -> list[Program]:
    """What is trained without each override."""
    images = Case("", width=0.25, batch=16)
    whole = replace(images, width=1.0)
    few = Case("", SMALL, norm="none", batch=50)
    many = replace(few, network=LARGE, batch=128)
    two = min(2, cores())  # threads: what only shares work among them declines on one
    found = [
        Program("width 0.25 x 16, NormProp", lambda: trained(images)),
        Program("width 0.25 x 1, NormProp", lambda: trained(replace(images, batch=1))),
        Program("width 0.1 x 50, NormProp", lambda: trained(replace(images, width=0.1, batch=50))),
        Program("width 0.25 x 16, BatchNorm", lambda: trained(replace(images, norm="batch"))),
        Program("width 0.25 x 16, biases", lambda: trained(replace(images, norm="none"))),
        Program("3x3 on 16 channels x 16", lambda: trained(replace(whole, network=FEW_CHANNELS))),
        Program("5x5, stride 2 x 16", lambda: trained(replace(whole, network=STRIDED))),
        Program("gradient penalty, width 1 x 4", lambda: gradient_penalty(replace(whole, batch=4))),
        Program(f"MLP {SMALL} x 50", lambda: trained(few)),
        Program(f"MLP {SMALL} x 50, NormProp", lambda: trained(replace(few, norm="normprop"))),
        Program("MLP 2-16-16-2 x 20", lambda: trained(replace(few, network="2-16-16-2", batch=20))),
    ]
    on_threads = {
        f"MLP {LARGE} x 128, NormProp": lambda: trained(replace(many, norm="normprop"), two),
        f"MLP {LARGE} x 128, RMSProp": lambda: trained(many, two, rmsprop),
        f"MLP {LARGE} x 128, Adam": lambda: trained(many, two, adam),
        "MLP 784-1024-10 x 128, no biases": lambda: trained(
            many, two, net=without_biases(784, 1024, 10)
        ),
        "relu(x @ w) @ v, 784-1024-10 x 128": lambda: trained(
            many, two, net=Products(784, 1024, 10)
        ),
    }
    return found + [Program(name, start, two) for name, start in on_threads.items()]
