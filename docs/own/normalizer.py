"""Two normalisers of your own. One looks at a sample, the other at the batch."""

import tinyprop as tp
import tinyprop.functional as F
from tinyprop import nn


class Sphere(nn.Module):
    """Divide each sample by its root mean square, and multiply it by a number that is learnt."""

    per_sample = True  # no output depends on another sample: ranks may share a batch
    statistics = nn.Statistics(over="sample", center=False)  # for the theory of `compare`

    def __init__(self, channels):
        self.gain = tp.tensor([1.0], requires_grad=True)

    def forward(self, x):
        axes = tuple(range(1, x.ndim))  # (N, C) or (N, C, H, W)
        square = F.mean(x * x, axes, keepdims=True)
        return self.gain * x * F.rsqrt(square + 1e-5)

    def propagate(self, state):
        return state.normalize_sample(eps=1e-5, centered=False).scale(self.gain)


class Centered(nn.Module):
    """Subtract the mean of each channel over the batch; in evaluation, its running mean."""

    sums_over_batch = True  # all it needs of other samples are sums by `over_batch`

    def __init__(self, channels):
        self.mean = tp.zeros(channels)  # without a gradient: saved, but not trained

    def forward(self, x):
        mean = self.mean
        if self.training:
            axes = (0, *range(2, x.ndim))
            count = nn.over_batch(x.size // x.shape[1])
            mean = nn.over_batch(F.sum(x, axes)) / count
            if not nn.is_observing():
                self.mean.data[...] += 0.1 * (mean.data - self.mean.data)
        return x - mean.reshape(1, -1, *[1] * (x.ndim - 2))


sphere = nn.Normalizer("sphere", before=Sphere, note="each sample by its root mean square")
centered = nn.Normalizer("centered", before=Centered, bias=False)
nn.normalizers.register(sphere, force=True)
nn.normalizers.register(centered, force=True)


if __name__ == "__main__":
    tp.manual_seed(0)
    net = nn.build("C(8,3,1,1)-R(C(8,3,1,1))-C(10,1,1,0)-P(8,8,0,avg)", norm="sphere")
    print(net(tp.randn(4, 3, 8, 8)).shape)
    print(", ".join(name for name, _ in net.named_parameters() if "gain" in name))
