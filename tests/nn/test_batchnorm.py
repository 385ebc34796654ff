import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn


@pytest.mark.slow  # to import PyTorch takes seconds
@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5, 2)])
def test_batchnorm_equals_pytorchs(shape, rng):
    torch = pytest.importorskip("torch")
    ours = nn.BatchNorm(4).to(dtype=np.float64)
    theirs = (torch.nn.BatchNorm1d if len(shape) == 2 else torch.nn.BatchNorm2d)(4, dtype=torch.float64)
    for p, q in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
        p.data[...] = rng.normal(size=4)
        q.data = torch.tensor(p.numpy().copy())
    for training in (True, True, False):
        ours.train(training)
        theirs.train(training)
        x = rng.normal(size=shape) * 3 + 1
        xo, xt = tp.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        yo, yt = ours(xo), theirs(xt)
        cotangent = rng.normal(size=shape)
        yo.backward(cotangent)
        yt.backward(torch.tensor(cotangent))
        np.testing.assert_allclose(yo.numpy(), yt.detach().numpy(), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(xo.grad.numpy(), xt.grad.numpy(), rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(ours.running_mean.numpy(), theirs.running_mean.numpy(), rtol=1e-12)
        np.testing.assert_allclose(ours.running_var.numpy(), theirs.running_var.numpy(), rtol=1e-12)


@pytest.mark.parametrize(("mean", "error"), [(0, 3e-6), (10, 3e-5), (1000, 3e-3)])
def test_few_digits_are_lost_far_from_zero(mean, error, rng):
    x = (rng.standard_normal((64, 8, 16, 16)) + mean).astype(np.float32)
    exact = x.astype(np.float64)
    exact = (exact - exact.mean((0, 2, 3), keepdims=True)) / np.sqrt(exact.var((0, 2, 3), keepdims=True) + 1e-5)
    assert abs(nn.BatchNorm(8)(tp.tensor(x)).numpy() - exact).max() < error
