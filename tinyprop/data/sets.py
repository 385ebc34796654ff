"""The data sets by name."""

from dataclasses import dataclass
from pathlib import Path

from ..engine.arrays import HostArray
from ..engine.errors import explain
from .classes import CIFAR10, CIFAR100, DIGITS, FASHION
from .files import Remote, Root
from .sources import Cifar, Drawn, Idx, Source, Svhn

SPLITS = ("train", "valid", "test")

TORONTO = "https://www.cs.toronto.edu/~kriz"
STANFORD = "http://ufldl.stanford.edu/housenumbers"
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

SOURCES: dict[str, Source] = {
    "shapes": Drawn(),
    "cifar10": Cifar(
        "cifar10",
        CIFAR10,
        Remote(f"{TORONTO}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        folder="cifar-10-batches-bin",
        train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        test=("test_batch.bin",),
        most=10_000,
        label_bytes=1,
    ),
    "cifar100": Cifar(
        "cifar100",
        CIFAR100,
        Remote(f"{TORONTO}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
        folder="cifar-100-binary",
        train=("train.bin",),
        test=("test.bin",),
        most=50_000,
        label_bytes=2,  # coarse, fine
    ),
    "svhn": Svhn(
        train=Remote(f"{STANFORD}/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        extra=Remote(f"{STANFORD}/extra_32x32.mat", "a93ce644f1a588dc4d68dda5feec44a7"),
        test=Remote(f"{STANFORD}/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
        most=531_131,
    ),
    "mnist": Idx(
        "mnist",
        DIGITS,
        folders=("mnist", "MNIST/raw"),
        train=(
            Remote(f"{MNIST}/train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            Remote(f"{MNIST}/train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        ),
        test=(
            Remote(f"{MNIST}/t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
            Remote(f"{MNIST}/t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
        most=60_000,
    ),
    "fashion-mnist": Idx(
        "fashion-mnist",
        FASHION,
        folders=("fashion-mnist", "FashionMNIST/raw"),
        train=(
            Remote(f"{ZALANDO}/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            Remote(f"{ZALANDO}/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        ),
        test=(
            Remote(f"{ZALANDO}/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            Remote(f"{ZALANDO}/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        most=60_000,
    ),
}
NAMES = tuple(SOURCES)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images (N, C, H, W) as bytes, their labels (N,) as int64, and the names of the classes.

    >>> shapes = tp.data.load("shapes", split="test")
    >>> shapes.first(3).images.shape, shapes.classes[shapes.labels[0]]
    ((3, 3, 32, 32), 'square')
    """

    name: str
    images: HostArray
    labels: HostArray
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Dataset({self.name}: {len(self):,} images {self.images.shape[1:]}, {len(self.classes)} classes)"

    def first(self, count: int) -> "Dataset":
        """The first `count` images, or all if there are fewer. They are not copied."""
        if count < 1:
            raise ValueError(explain(f"first({count})", "count is at least 1", f"first(100) of the {len(self):,}"))
        return Dataset(self.name, self.images[:count], self.labels[:count], self.classes)


def load(name: str, root: Root = None, split: str = "train") -> Dataset:
    """A data set: shapes (drawn on the spot), cifar10, cifar100, svhn, mnist or fashion-mnist.

    Its files, packed as they are published or unpacked, are looked for in `root`, in $TINYPROP_DATA and in the user's
    cache folder. Those that are not there are downloaded into the first of these that is given, and checked.
    The splits are train, valid and test; valid is held out from the images that are published for training.

    >>> tp.data.load("shapes", split="test")
    Dataset(shapes: 2,000 images (3, 32, 32), 10 classes)
    """
    source = _source(name)
    if split not in SPLITS:
        raise ValueError(explain(f"split {split!r}", f"a split is one of {', '.join(SPLITS)}", "split='train'"))
    paths = source.find(root, split)
    if paths is None:
        paths = source.fetch(root, split)
    return Dataset(name, *source.read(paths, split), source.classes)


def found(name: str, root: Root = None, split: str = "train") -> list[Path]:
    """The files that `load` would read; none if it would have to download or draw them first.

    >>> tp.data.found("mnist", root="/nowhere")
    []
    """
    return _source(name).find(root, split) or []


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise ValueError(explain(f"data set {name!r}", f"a data set is one of {', '.join(NAMES)}", "load('shapes')"))
    return SOURCES[name]
