"""The data sets: classes in their official order, addresses and MD5 digests of their files."""

from functools import partial

from . import shapes
from .formats import read_cifar, read_mnist, read_svhn
from .sources import Remote, Source

TORONTO = "https://www.cs.toronto.edu/~kriz"
STANFORD = "http://ufldl.stanford.edu/housenumbers"
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

DIGITS = tuple("0123456789")
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man
    maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
    plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail
    snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
    tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR10_FILE = f"{TORONTO}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"
CIFAR100_FILE = f"{TORONTO}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"


def _idx(address: str, part: str, images_md5: str, labels_md5: str) -> tuple[Remote, Remote]:
    images, labels = f"{address}/{part}-images-idx3-ubyte.gz", f"{address}/{part}-labels-idx1-ubyte.gz"
    return Remote(images, images_md5), Remote(labels, labels_md5)


SOURCES: dict[str, Source] = {
    "shapes": Source(classes=shapes.CLASSES, read=shapes.read),
    "cifar10": Source(
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        folders=("cifar10", "."),
        train=(Remote(*CIFAR10_FILE, tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6))),),
        test=(Remote(*CIFAR10_FILE, ("cifar-10-batches-bin/test_batch.bin",)),),
        read=read_cifar,
    ),
    "cifar100": Source(
        classes=tuple(CIFAR100.split()),
        folders=("cifar100", "."),
        train=(Remote(*CIFAR100_FILE, ("cifar-100-binary/train.bin",)),),
        test=(Remote(*CIFAR100_FILE, ("cifar-100-binary/test.bin",)),),
        read=partial(read_cifar, label_bytes=2),  # coarse, fine
    ),
    "svhn": Source(
        classes=DIGITS,
        folders=("svhn", "."),
        train=(
            Remote(f"{STANFORD}/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            Remote(f"{STANFORD}/extra_32x32.mat", "a93ce644f1a588dc4d68dda5feec44a7"),
        ),
        test=(Remote(f"{STANFORD}/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),),
        read=read_svhn,
        per_class=(400, 200),  # of train and of extra, section 5 of the paper
    ),
    "mnist": Source(
        classes=DIGITS,
        folders=("mnist", "MNIST/raw"),
        train=_idx(MNIST, "train", "f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432"),
        test=_idx(MNIST, "t10k", "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
        read=read_mnist,
    ),
    "fashion-mnist": Source(
        classes=FASHION,
        folders=("fashion-mnist", "FashionMNIST/raw"),
        train=_idx(ZALANDO, "train", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe"),
        test=_idx(ZALANDO, "t10k", "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"),
        read=read_mnist,
    ),
}
