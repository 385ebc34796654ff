"""The data sets: classes in their official order, addresses, sizes and SHA-256 digests of their
files."""

from functools import partial
from pathlib import Path

from . import shapes
from .formats import read_cifar, read_mnist, read_svhn
from .sources import Remote, Source

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
# SHA-256 digest, size and address of each file as it is published, and of unpacked ones where they
# are known.
ROWS = map(str.split, Path(__file__).with_name("files.txt").read_text().splitlines())
FILES = {address: (int(size), digest) for digest, size, address in ROWS}


def _remote(url: str, *members: str) -> Remote:
    unpacked = {
        Path(a).name: FILES[a][1]
        for a in FILES
        if a != url and a.startswith(url.removesuffix(".gz"))
    }
    return Remote(url, *FILES[url], members, unpacked)


def _mnist(classes: tuple[str, ...], folders: tuple[str, ...], address: str) -> Source:
    train, test = (
        tuple(
            _remote(f"{address}/{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")
        )
        for part in ("train", "t10k")
    )
    largest = 60_000 * 784 + HEADERS
    return Source(
        classes=classes, folders=folders, train=train, test=test, largest=largest, read=read_mnist
    )


SOURCES: dict[str, Source] = {
    "shapes": Source(
        classes=shapes.CLASSES,
        read=lambda source, paths, split: [
            shapes.draw(2_000, 2) if split == "test" else shapes.draw(10_000, 1)
        ],
    ),
    "cifar10": Source(
        classes=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
        folders=("cifar10", "."),
        train=(
            _remote(
                CIFAR10_FILE, *(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6))
            ),
        ),
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
