"""An activation of your own, with two kinks and a slope that is learnt."""

import tinyprop as tp
import tinyprop.functional as F


def leaky_clip(u, slope):
    """The identity between -1 and 2, and lines of another slope outside."""
    inside = F.clip(u, -1.0, 2.0)
    return inside + slope * (u - inside)


mine = tp.Activation(leaky_clip, kinks=(-1.0, 2.0), parameters={"slope": 0.2})
tp.activations.register(mine, force=True)


if __name__ == "__main__":
    moments = tp.moments.gaussian("leaky_clip", mean=0.0, std=2.0)
    print(f"of N(0, 4): mean {moments.mean:.6f}, standard deviation {moments.std:.6f}")

    tp.manual_seed(0)
    layer = tp.nn.NormPropLinear(10, 1, activation="leaky_clip", gamma=2.0, mode="exact")
    layer.beta.data[...] = 0.5
    out = layer(tp.randn(100_000, 10))
    print(f"NormProp: mean {out.mean().item():+.2f}, variance {out.var().item():.2f}")

    print("it learns", ", ".join(name for name, _ in layer.named_parameters()))
