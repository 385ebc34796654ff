"""The numbers that the paper prints, each in one place (Arpit et al., ICML 2016)."""

from typing import NamedTuple

# section 3.4: E[J J^T] is about this times the identity, J the Jacobian of a ReLU layer
MEAN_SQUARE_GAIN = 1.47
# section 3.4: singular values of a ReLU layer's Jacobian; gamma starts at its inverse
JACOBIAN_FACTOR = 1.21


class Errors(NamedTuple):
    """A row of the table in section 5.5: test errors in %."""

    normprop: float
    batch_norm: float
    best_other: float
    test_images: int


TEST_ERRORS = {
    "CIFAR-10": Errors(9.11, 9.41, 9.59, 10_000),
    "CIFAR-10 with flips": Errors(7.47, 7.25, 7.51, 10_000),
    "CIFAR-100": Errors(32.19, 35.32, 34.40, 10_000),
    "CIFAR-100 with flips": Errors(29.24, 30.26, 30.83, 10_000),
    "SVHN": Errors(1.88, 2.25, 1.92, 26_032),
}
LEARNING_RATES = {50: 0.05, 100: 0.08}  # by batch size: section 5.1
UNNORMALIZED_RATE = 0.0001  # learning rate of the network without normalisation: section 5.2
# hidden mean inputs at convergence, averaged: section 5.2
MEAN_INPUTS = {"normprop": 0.19, "batch": 0.33}
# %, the best of section 5.1: batch data normalisation, batches of 50
ACCURACY_AFTER_30_EPOCHS = 90.35
WEIGHT_DECAYS = (0.0005, 0.005)  # "a small coefficient is necessary": section 4.4
EPOCH_SECONDS = {"normprop": 84.0, "batch": 96.0}  # on a GPU: section 5.6
