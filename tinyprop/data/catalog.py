"""The data sets: classes in their official order, addresses, sizes and SHA-256 digests of their
files."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import shapes
from .formats import read_cifar, read_mnist, read_svhn
from .sources import Remote, Samples, Source

CIFAR10_FILE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR100_FILE = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
STANFORD = "http://ufldl.stanford.edu/housenumbers"
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
HEADERS = 1 << 20  # bytes, more than any file has besides its images

DIGITS = tuple("0123456789")
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


@dataclass(frozen=True)
class Published:
    """Size and SHA-256 digest of a file."""

    size: int
    sha256: str


def _read_table() -> dict[str, Published]:
    """By address: each file as it is published, and unpacked where that is known."""
    files = {}
    for line in Path(__file__).with_name("files.txt").read_text().splitlines():
        digest, size, address = line.split()
        files[address] = Published(int(size), digest)
    return files


FILES = _read_table()


def _remote(url: str, *members: str) -> Remote:
    published = FILES[url]
    unpacked = {}
    for address, file in FILES.items():
        if address != url and address.startswith(url.removesuffix(".gz")):
            unpacked[Path(address).name] = file.sha256
    return Remote(url, published.size, published.sha256, members, unpacked)


def _mnist(classes: tuple[str, ...], folders: tuple[str, ...], address: str) -> Source:
    def images_and_labels(part: str) -> tuple[Remote, Remote]:
        images = _remote(f"{address}/{part}-images-idx3-ubyte.gz")
        labels = _remote(f"{address}/{part}-labels-idx1-ubyte.gz")
        return images, labels

    return Source(
        classes=classes,
        folders=folders,
        train=images_and_labels("train"),
        test=images_and_labels("t10k"),
        largest=60_000 * 784 + HEADERS,
        read=read_mnist,
    )


def _draw_shapes(source: Source, paths: list[Path], split: str) -> list[Samples]:
    if split == "test":
        return [shapes.draw(2_000, seed=2)]
    return [shapes.draw(10_000, seed=1)]


CIFAR10_BATCHES = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]

SOURCES: dict[str, Source] = {
    "shapes": Source(classes=shapes.CLASSES, read=_draw_shapes),
    "cifar10": Source(
        classes=tuple(CIFAR10.split()),
        folders=("cifar10", "."),
        train=(_remote(CIFAR10_FILE, *CIFAR10_BATCHES),),
        test=(_remote(CIFAR10_FILE, "cifar-10-batches-bin/test_batch.bin"),),
        largest=60_000 * 3_073 + HEADERS,
        read=read_cifar,
    ),
    "cifar100": Source(
        classes=tuple(CIFAR100.split()),
        folders=("cifar100", "."),
        train=(_remote(CIFAR100_FILE, "cifar-100-binary/train.bin"),),
        test=(_remote(CIFAR100_FILE, "cifar-100-binary/test.bin"),),
        largest=60_000 * 3_074 + HEADERS,
        read=partial(read_cifar, label_bytes=2),  # coarse, fine
    ),
    "svhn": Source(
        classes=DIGITS,
        folders=("svhn", "."),
        train=(_remote(f"{STANFORD}/train_32x32.mat"), _remote(f"{STANFORD}/extra_32x32.mat")),
        test=(_remote(f"{STANFORD}/test_32x32.mat"),),
        largest=531_131 * 3_072 + HEADERS,
        read=read_svhn,
        per_class=(400, 200),  # of train and of extra, section 5 of the paper
    ),
    "mnist": _mnist(DIGITS, ("mnist", "MNIST/raw"), MNIST),
    "fashion-mnist": _mnist(FASHION, ("fashion-mnist", "FashionMNIST/raw"), ZALANDO),
}
