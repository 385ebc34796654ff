"""The checkers of all exercises, lesson by lesson. Each tests properties of an answer, and knows the usual mistakes."""

import math
from collections import Counter

import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from checks import NotYet, exercise, expect, numbers, pieces, right

PLACES = (-1.3, -0.4, 0.3, 1.7)
C2, C1 = 1 / math.sqrt(2 * math.pi), math.sqrt((1 - 1 / math.pi) / 2)
CHI = math.pi / (math.pi - 1)


def draws(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# Lesson 1


@exercise("1.1", "It is a product of two functions of x.", "(f g)' = f' g + f g', with f = x and g = tanh x.")
def slope_of_x_tanh_x(f):
    for x in PLACES:
        t = math.tanh(x)
        right(
            f(x),
            t + x * (1 - t * t),
            f"at x = {x} a central difference gives {t + x * (1 - t * t):.4f}",
            (t, "that is the slope through the first factor only; tanh x depends on x, too"),
            (x * (1 - t * t), "that is the slope of tanh x, times x; the factor x has a slope, too"),
            (1 - t * t, "the slope of a product is not the product of the slopes"),
        )


@exercise(
    "1.2",
    "Fix b: then a / b is a times a number. Fix a: then it is a times 1 / b.",
    "The derivative of 1 / b with respect to b is -1 / b^2.",
)
def divide(f):
    for a, b in ((3.0, 2.0), (-1.0, 0.5), (2.0, -4.0)):
        value, by_a, by_b = pieces(f(a, b), 3, "the value, the slope by a, the slope by b")
        right(value, a / b, f"the value of {a} / {b} is {a / b}")
        by_which = f"with a = {a}, b = {b}, a central difference gives"
        right(
            by_a,
            1 / b,
            f"the slope with respect to a is wrong: {by_which} {1 / b:.4f}",
            (1.0, "the slope with respect to a is not 1: twice the a gives twice the quotient"),
        )
        right(
            by_b,
            -a / b**2,
            f"the slope with respect to b is wrong: {by_which} {-a / b**2:.4f}",
            (a / b**2, "the slope with respect to b has the wrong sign: a larger b divides more"),
            (-1 / b**2, "the slope with respect to b must grow with a: it is a factor of the result"),
        )


@exercise(
    "1.3",
    "Put a value on the stack twice: once to look at its inputs, and once more, below them, to list it.",
    "Stack pairs (value, inputs_done). Pop one: if its inputs are done, append it to the list; otherwise, if you have "
    "not seen it, push (value, True), then (input, False) for each input.",
)
def inputs_first_by_a_loop(f):
    a = Node()
    b, c = Node(a), Node(a)
    d = Node(b, c, a)
    found = list(f(Node(d, d, c)))
    counts = Counter(id(value) for value in found)
    expect(max(counts.values()) == 1, "a value that is used twice is listed twice: remember what you have seen")
    expect(len(found) == 5, f"it lists {len(found)} values of a graph that has 5, the result included")
    for place, value in enumerate(found):
        late = [source for source in value.inputs if found.index(source) > place]
        expect(not late, "an input comes after a value that is computed from it")
    last = first = Node()
    for _ in range(10_000):
        last = Node(last, first)
    expect(len(f(last)) == 10_001, "it loses values of a long chain")


class Node:
    """What `Value` is to an order: something with inputs."""

    def __init__(self, *inputs):
        self.inputs = inputs


@exercise(
    "1.4",
    "By the chain rule, backward returns g times the slope.",
    "g / (1 + abs(x)) ** 2; abs, +, ** and / work on tensors.",
)
def softsign(op):
    expect(isinstance(op, type) and issubclass(op, tp.Op), "the answer is the class, a subclass of tp.Op")
    x = tp.tensor(np.array(PLACES), requires_grad=True)
    g = draws(4)
    try:
        out = op()(x)
        (found,) = tp.grad(out, [x], g, retain_graph=True)
    except (TypeError, tp.GradientError) as error:
        raise NotYet(f"it stops with: {error}") from error
    slope = 1 / (1 + abs(x.data)) ** 2
    right(out, x.data / (1 + abs(x.data)), "forward does not compute x / (1 + |x|)")
    right(
        found,
        g * slope,
        "backward does not agree with a central difference",
        (g, "backward hands the gradient on as it is: multiply it by the slope"),
        (slope, "backward returns the slope alone: multiply it by the gradient g that arrives"),
    )
    try:
        tp.check_gradients(lambda x: op()(x), x)
    except Exception:
        raise NotYet("the slope is right, but its own slope is not: compute with tensors, not with x.data") from None


# Lesson 2


@exercise(
    "2.1",
    "The gradient with respect to A has the shape of A. Which product of G and B has it?",
    "dL/dA_ik is the sum over j of G_ij B_kj: a product with B transposed.",
)
def product_gradients(f):
    a, b, g = draws(3, 4), draws(4, 5, seed=1), draws(3, 5, seed=2)
    to_a, to_b = pieces(f(a, b, g), 2, "the gradient with respect to A, and that with respect to B")
    swapped = "the two gradients are swapped"
    right(to_a, g @ b.T, "the gradient with respect to A does not agree with differences", (a.T @ g, swapped))
    right(to_b, a.T @ g, "the gradient with respect to B does not agree with differences", (g @ b.T, swapped))


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@exercise(
    "2.2",
    "What you said, minus what is true, and the loss is a mean over n rows.",
    "Compute p = softmax of each row after subtracting its largest logit, subtract 1 at the label, divide by n.",
)
def cross_entropy_gradient(f):
    z, labels = 2 * draws(6, 4), np.array([0, 3, 1, 1, 2, 0])
    p = softmax(z)
    wanted, probabilities = (p - np.eye(4)[labels]) / 6, "these are the probabilities: subtract 1 at the right class"
    right(
        f(z, labels),
        wanted,
        "it does not agree with central differences",
        (p, probabilities),
        (p / 6, probabilities),
        (6 * wanted, "that is the gradient of the sum of the losses; the loss is their mean"),
        (-wanted, "the sign is wrong: a larger logit of the right class makes the loss smaller"),
    )
    with np.errstate(all="ignore"):
        try:
            large = numbers(f(1000 * z, labels), z.shape)
        except NotYet:
            raise NotYet("logits of 1,000 overflow: subtract the largest logit of each row first") from None
    right(large, (softmax(1000 * z) - np.eye(4)[labels]) / 6, "it is wrong for logits of 1,000")


@exercise(
    "2.3", "First the velocity, then the weight, with the new velocity.", "v = momentum * v + g, then w = w - rate * v."
)
def momentum_step(f):
    w, v, g = draws(5), draws(5, seed=1), draws(5, seed=2)
    new_w, new_v = pieces(f(w, v, g, 0.1, 0.9), 2, "the new w and the new v")
    wanted = 0.9 * v + g
    right(
        new_v,
        wanted,
        "the new velocity is momentum times the old one, plus the gradient",
        (0.9 * v - g, "the velocity adds up gradients; the minus sign comes with the step of w"),
        (0.9 * v + 0.1 * g, "here the rate multiplies the velocity, not the gradient in it"),
    )
    right(
        new_w,
        w - 0.1 * wanted,
        "the new w is w minus the rate times the new velocity",
        (w - 0.1 * v, "w moved by the old velocity; update v first"),
        (w - 0.1 * g, "w moved by the gradient; let it move by the velocity"),
        (w + 0.1 * wanted, "w went uphill: the step is against the velocity"),
    )


@exercise(
    "2.4",
    "Element by element it is a product: times the other factor. And s is used once for each row.",
    "The gradient with respect to s is the sum over the rows of g * x.",
)
def scale_gradients(f):
    x, s, g = draws(6, 3), draws(3, seed=1), draws(6, 3, seed=2)
    to_x, to_s = pieces(f(x, s, g), 2, "the gradient with respect to X, and that with respect to s")
    right(to_x, g * s, "the gradient with respect to X is G times the other factor, s")
    right(
        to_s,
        (g * x).sum(axis=0),
        "the gradient with respect to s does not agree with central differences",
        (g * x, "s is one row: what is repeated forwards is summed backwards"),
        ((g * x).mean(axis=0), "add the contributions of the rows up; do not average them"),
        (g.sum(axis=0), "that would be the gradient of an added row; here s multiplies X"),
    )


# Lesson 3


@exercise(
    "3.1",
    "What does the leaky ReLU do to the mean square of u? Half of the u are positive.",
    "It multiplies it by (1 + a^2) / 2, so n v (1 + a^2) / 2 must be 1.",
)
def he_std(f):
    for n, a in ((100, 0.0), (50, 0.0), (100, 0.5), (64, -1.0)):
        variance = 2 / (n * (1 + a * a))
        right(
            f(n, a),
            math.sqrt(variance),
            f"with {n} inputs and a = {a} the mean square does not stay the same",
            (variance, "that is the variance; the standard deviation is its root"),
            (math.sqrt(1 / n), "that keeps the size of a layer without activation"),
            (math.sqrt(2 / n), "that is right for ReLU; below 0, this one lets a part through"),
        )


@exercise(
    "3.2",
    "Which variance does a uniform distribution on [-r, r] have?",
    "r^2 / 3 is the integral of x^2 / (2 r); it must be 2 / (n + m).",
)
def glorot_bound(f):
    for n, m in ((100, 100), (300, 10)):
        right(
            f(n, m),
            math.sqrt(6 / (n + m)),
            f"uniform on that interval, the variance is not 2/({n} + {m})",
            (math.sqrt(2 / (n + m)), "that is the standard deviation; the bound is larger"),
            (math.sqrt(3 / n), "that is right forwards only: take the outputs into account"),
        )


@exercise(
    "3.3",
    "A product with the weights multiplies the mean square by c, a ReLU by 1/2.",
    "In layer L there were L products and L - 1 ReLUs; take the root.",
)
def size_in_layer(f):
    for c, layer in ((2.0, 1), (1.0, 30), (2.0, 10), (3.0, 5)):
        square = c * (c / 2) ** (layer - 1)
        right(
            f(c, layer),
            math.sqrt(square),
            f"with c = {c:g} it is {math.sqrt(square):.4g} in layer {layer}",
            (square, "that is the mean square; take its root"),
            (math.sqrt((c / 2) ** layer), "count the ReLUs again: before the first u there is none"),
        )


@exercise(
    "3.4",
    "What counts for the next layer is the mean square of s(Z), Z standard normal, not its variance.",
    "g = 1 / sqrt(mean of s(z)**2) for many normal z.",
)
def gain(f):
    cases = {
        "ReLU": (lambda z: np.maximum(z, 0), 0.5, 0.5 - C2**2),
        "the absolute value": (abs, 1.0, 1 - 2 / math.pi),
        "2 z + 1": (lambda z: 2 * z + 1, 5.0, 4.0),
    }
    for name, (s, square, variance) in cases.items():
        right(
            f(s),
            square**-0.5,
            f"for {name} it is {square**-0.5:.3f}",
            (variance**-0.5, f"for {name} you divide by the standard deviation; the mean counts, too"),
            (square**0.5, f"for {name} it is upside down: a faint activation needs large weights"),
            relative=0.02,
        )


# Lesson 4


@exercise(
    "4.1",
    "There is one mean and one variance for each channel: over which three axes?",
    "x.mean(axis=(0, 2, 3), keepdims=True), and the same for x.var.",
)
def batch_norm_images(f):
    x = 3 * draws(4, 2, 3, 5) + draws(1, 2, 1, 1, seed=1)

    def normal(axes, ddof=0, eps=0.1):
        return (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(x.var(axis=axes, keepdims=True, ddof=ddof) + eps)

    everywhere = (0, 2, 3)
    std = x.std(axis=everywhere, keepdims=True)
    right(
        f(x, 0.1),
        normal(everywhere),
        "over samples and places, a channel does not have mean 0 and variance 1 (up to eps)",
        (normal(0), "each place has statistics of its own: take the places of a channel together"),
        (normal((1, 2, 3)), "you normalised each sample over its channels: that is LayerNorm (lesson 9)"),
        (normal((0, 1, 2, 3)), "there is one mean for all channels: each channel needs its own"),
        (normal(everywhere, ddof=1), "the variance is the mean of the squares: divide by their number, not one less"),
        (normal(everywhere, eps=0.0), "eps is missing"),
        ((x - x.mean(axis=everywhere, keepdims=True)) / (std + 0.1), "eps is added to the variance, under the root"),
    )


@exercise(
    "4.2",
    "Three ways lead from x_j to the outputs: directly, through the mean, and through the standard deviation.",
    "Remove from g its mean, and its part along the normalised x; then divide by the standard deviation.",
)
def normalized_gradient(f):
    x, g = 2 * draws(7) + 1, draws(7, seed=1)
    std = x.std()
    normal = (x - x.mean()) / std
    right(
        f(x, g),
        (g - g.mean() - normal * (g * normal).mean()) / std,
        "it does not agree with central differences",
        (g / std, "the mean and the standard deviation depend on x, too: two terms are missing"),
        ((g - g.mean()) / std, "the standard deviation depends on x, too: a term is missing"),
        ((g - normal * (g * normal).mean()) / std, "the mean depends on x, too: a term is missing"),
        (g - g.mean() - normal * (g * normal).mean(), "divide by the standard deviation"),
        ((g - g.mean() - x * (g * x).mean()) / std, "the second term needs the normalised x, not x itself"),
    )


@exercise("4.3", "One step: running = (1 - momentum) * running + momentum * new.", "Do it in a loop, from running = 0.")
def running_mean(f):
    means = draws(9) + 2

    def after(momentum):
        running = 0.0
        for mean in means:
            running = (1 - momentum) * running + momentum * mean
        return running

    right(
        f(means, 0.1),
        after(0.1),
        "after 9 steps the running mean is another one",
        (after(0.9), "momentum is the weight of the new batch; you gave it to the old average"),
        (means.mean(), "that is the plain average: older batches must count less and less"),
    )


@exercise(
    "4.4",
    "Let one sample be far away from all the others, which are equal.",
    "With one sample at 1 and the others at 0, the mean is 1/B and the variance (1/B)(1 - 1/B).",
)
def largest_output(f):
    for size in (2, 5, 50):
        right(
            f(size),
            math.sqrt(size - 1),
            f"in a batch of {size} a sample can reach {math.sqrt(size - 1):.4g}",
            (math.sqrt(size), "nearly: all squares add up to B, but the others cannot all be 0, as the mean is 0"),
        )


# Lesson 5


@exercise(
    "5.1",
    "Split the integral at 0. The positive half contributes c2 to the mean; what does the other half contribute?",
    "The mean is c2 - a c2, the mean square 1/2 + a^2/2; the variance is the mean square minus the squared mean.",
)
def prelu_constants(f):
    for a in (0.0, 0.25, 1.0, -1.0, 3.0):
        mean, std = pieces(f(a), 2, "the mean and the standard deviation")
        exact = tp.moments.gaussian("prelu", a=a)
        right(
            mean,
            exact.mean,
            f"for a = {a} the mean is {exact.mean:.4f}",
            ((1 + a) * C2, "below 0, x is negative: a positive a makes the mean smaller"),
        )
        right(
            std,
            exact.std,
            f"for a = {a} the standard deviation is {exact.std:.4f}",
            (exact.std**2, "that is the variance; take its root"),
            (math.sqrt((1 + a * a) / 2), "that is the root of the mean square: subtract the squared mean first"),
        )


@exercise(
    "5.2",
    "Fourth moment about the mean m: E y^4 - 4 m E y^3 + 6 m^2 E y^2 - 3 m^4.",
    "The kurtosis is about 5.41. Solve sqrt((kurtosis - 1) / (4 N)) = error for N.",
)
def samples_needed(f):
    kurtosis = (1.5 - 8 * C2**2 + 3 * C2**2 - 3 * C2**4) / C1**4
    for error in (0.01, 0.00064):
        wanted = (kurtosis - 1) / 4 / error**2
        right(
            f(error),
            wanted,
            f"for {error:.3%} it takes {wanted:.3g} samples",
            (1.5 / C1**4 / 4 / error**2 - 0.25 / error**2, "the fourth moment is about the mean, not about 0"),
            ((kurtosis - 1) / 4 / error, "the error falls with the root of N: square it"),
            ((kurtosis - 1) / error**2, "that is for the variance; its root has half the relative error"),
            (0.5 / error**2, "that would be right for a normal number, of kurtosis 3; ReLU's is larger"),
            relative=0.01,
        )


@exercise(
    "5.3",
    "Write X = mu + Z. The integral runs over z > -mu.",
    "The integral of z phi(z) from -mu on is phi(mu); that of phi is Phi(mu).",
)
def shifted_relu_mean(f):
    for mu in (1.0, -0.7, 2.5, 0.0):
        wanted = float(tp.moments.gaussian("relu", mu, 1.0).mean)
        right(
            f(mu),
            wanted,
            f"for mu = {mu} it is {wanted:.4f}",
            (max(mu, 0.0), "that is ReLU of the mean; the mean of ReLU is larger"),
            (mu + C2, "a shift of the input is not a shift of the output: ReLU is not a line"),
            (mu * 0.5 * math.erfc(-mu / math.sqrt(2)), "the part from z phi(z) is missing"),
        )


@exercise(
    "5.4",
    "On average the recipe gives sqrt(256 / 255), and it uses N = 1024 * 256 numbers.",
    "(1.0002083778381348 - sqrt(256/255)) times sqrt(2 N).",
)
def standard_errors_away(answer):
    root = math.sqrt(2 * 1024 * 256)
    wanted, table = (1.0002083778381348 - math.sqrt(256 / 255)) * root, 1.0002083778381348
    right(
        answer,
        wanted,
        "it is another number of standard errors",
        (-wanted, "the sign: the table's number is below the average"),
        ((table - 1) * root, "that is the distance from 1; the recipe gives sqrt(256/255) on average"),
        (1 - table, "that is a distance; divide it by the standard error"),
        relative=0.02,
    )


# Lesson 6


@exercise(
    "6.1",
    "np.linalg.norm(weight, axis=1) has one length for each unit.",
    "u = gamma * (x @ weight.T) / length + beta; then ReLU, minus c2, over c1.",
)
def normprop(f):
    x, w, gamma, beta = draws(6, 4), 3 * draws(3, 4, seed=1), draws(3, seed=2), draws(3, seed=3)
    length = np.linalg.norm(w, axis=1)

    def out(u):
        return (np.maximum(u, 0) - C2) / C1

    right(
        f(x, w, gamma, beta),
        out(gamma * (x @ w.T) / length + beta),
        "it is not the paper's equation",
        (out(gamma * (x @ w.T) + beta), "the weights must be divided by their length"),
        (out((x @ w.T) / length) * gamma + beta, "gamma and beta stand inside the activation"),
        (out((gamma * (x @ w.T) + beta) / length), "beta is added after the division by the length"),
        (out(gamma * (x @ w.T) / np.linalg.norm(w) + beta), "each unit has its own length: axis=1"),
        (np.maximum(gamma * (x @ w.T) / length + beta, 0), "subtract c2 and divide by c1"),
    )


@exercise("6.2", "max(0, v) - t = max(v - t, -t).", "With v = (u + beta) / c1 and t = c2 / c1.")
def folded(f):
    for beta in (0.0, 0.3, -1.0):
        b, t = pieces(f(beta), 2, "b and t")
        right(
            b,
            (beta - C2) / C1,
            "with this b, max(z + b, -t) is not the layer's output",
            (beta / C1, "the constant c2 must be subtracted inside the max, too"),
            (beta - C2, "z is u / c1, so everything else inside the max is divided by c1, too"),
        )
        right(t, C2 / C1, "t is what the output is when the unit is off, without its sign", (C2, "divide it by c1"))


@exercise("6.3", "The gradient is orthogonal to w.", "Pythagoras: the root of |w|^2 + (rate |g|)^2.")
def length_after(f):
    for length, gradient, rate in ((1.0, 0.5, 1.0), (2.0, 3.0, 0.1)):
        right(
            f(length, gradient, rate),
            math.hypot(length, rate * gradient),
            "it is another length",
            (length - rate * gradient, "the gradient does not point along w: it is orthogonal to it"),
            (length + rate * gradient, "the gradient does not point along w: it is orthogonal to it"),
            (length**2 + (rate * gradient) ** 2, "that is the squared length"),
            (length, "it does get longer, a little"),
        )


@exercise("6.4", "Solve 3 k / (n + 2) < epsilon for n.", "n > 3 k / epsilon - 2; round up.")
def width_for(f):
    for epsilon in (1.0, 0.1, 0.03):
        right(
            f(epsilon),
            math.floor(3 * 2.4076 / epsilon - 2) + 1,
            f"for epsilon = {epsilon} it is another width",
            (3 * 2.4076 / epsilon - 2, "a layer has a whole number of units: round up"),
            (math.floor(3 * 2.4076 / epsilon - 2), "rounded down, it is not quite below epsilon"),
        )


# Lesson 7


@exercise(
    "7.1", "Put k = units / 2 into the law, and mind the length of the rows.", "(1 -+ sqrt(units/(2 inputs))) / c1."
)
def edges(f):
    for units, inputs in ((100, 100), (100, 200), (300, 100)):
        root = math.sqrt(units / (2 * inputs))
        low, high = pieces(f(units, inputs), 2, "the smallest and the largest nonzero singular value")
        right(
            high,
            (1 + root) / C1,
            f"for {units} units and {inputs} inputs the largest is {(1 + root) / C1:.3f}",
            ((1 + math.sqrt(units / inputs)) / C1, "only half of the units are on"),
            (1 + root, "the rows have length 1/c1, not 1"),
            ((1 + root) * C1, "the rows are divided by c1, not multiplied by it"),
        )
        right(
            low,
            abs(1 - root) / C1,
            f"for {units} units and {inputs} inputs the smallest is {abs(1 - root) / C1:.3f}",
            ((1 - root) / C1, "a singular value is never negative: take the absolute value"),
        )


@exercise("7.2", "One layer with gamma = 1 has pi / (pi - 1) = 1.4669.", "gamma multiplies J, so gamma^2 the square.")
def gain_of_product(f):
    for depth, gamma in ((1, 1.0), (3, 1.0), (9, 0.9)):
        right(
            f(depth, gamma),
            (gamma**2 * CHI) ** depth,
            f"for {depth} layers and gamma = {gamma} it is {(gamma**2 * CHI) ** depth:.4g}",
            ((gamma * CHI) ** depth, "gamma multiplies J; what does it do to the square of J?"),
            ((gamma**2 * math.sqrt(CHI)) ** depth, "1.2112 is the root of the gain; the question is about squares"),
            ((gamma * math.sqrt(CHI)) ** depth, "that is the root mean square"),
            (depth * gamma**2 * CHI, "gains of layers multiply"),
        )


@exercise(
    "7.3",
    "If both units are on, the product of their rows of J is a number that depends on rho only.",
    "The rows are w / c1 with |w| = 1, so their product is rho / c1^2, times the probability that both are on.",
)
def off_diagonal(f):
    for rho in (0.5, 0.0, -0.9, 1.0):
        both = (math.pi - math.acos(rho)) / (2 * math.pi)
        right(
            f(rho),
            rho * both / C1**2,
            f"for rho = {rho} it is {rho * both / C1**2:.4f}",
            (both / C1**2, "the product of the two rows is rho, not 1"),
            (rho * both, "each of the two rows is divided by c1"),
            (rho * both / C1, "each of the two rows is divided by c1"),
            (rho / C1**2, "both units must be on"),
        )


@exercise("7.4", "How many rows are not 0? And how large can the rank of so many rows be?", "min(units/2, inputs).")
def zero_fraction(f):
    for units, inputs in ((100, 100), (100, 300), (150, 100), (400, 100)):
        wanted = 1 - min(units / 2, inputs) / min(units, inputs)
        right(
            f(units, inputs),
            wanted,
            f"for {units} units and {inputs} inputs it is {wanted:.3g}",
            (0.5, "one half is right for at most as many units as inputs; think of a layer with many more units"),
            (1 - wanted, "that is the fraction which is not 0"),
            (
                1 - units / 2 / min(units, inputs),
                "a fraction is not negative: the rank is at most the number of inputs",
            ),
        )


# Lesson 8


@exercise(
    "8.1",
    "q' = gamma^2 E[o^2], and o = (relu(u) - c2) / c1: multiply the square out.",
    "(gamma / C1)**2 * (q / 2 - 2 * C2**2 * sqrt(q) + C2**2).",
)
def next_mean_square(f):
    for q, gamma in ((1.0, 1.0), (0.25, 0.8), (4.0, 0.9)):
        wanted = (gamma / C1) ** 2 * (q / 2 - 2 * C2**2 * math.sqrt(q) + C2**2)
        right(
            f(q, gamma),
            wanted,
            f"for q = {q}, gamma = {gamma} it is {wanted:.4f}",
            ((gamma / C1) ** 2 * (q / 2 - 2 * C2**2 * q + C2**2), "the mean of relu(u) grows with the root of q"),
            ((gamma / C1) ** 2 * (q / 2 + C2**2), "the mixed term of the square is missing"),
            (gamma**2 * (q / 2 - 2 * C2**2 * math.sqrt(q) + C2**2), "divide by c1^2"),
            (gamma / C1**2 * (q / 2 - 2 * C2**2 * math.sqrt(q) + C2**2), "gamma multiplies u, so gamma^2 its square"),
            ((gamma / C1) ** 2 * q / 2, "that is without subtracting c2"),
        )


@exercise(
    "8.2",
    "With r = sqrt(q) and 2 c1^2 = 1 - 1/pi, c2^2 = 1/(2 pi): r^2 (pi - 1) / gamma^2 = pi r^2 - 2 r + 1.",
    "Write it as (1 - r)^2 = r^2 (pi - 1) (1 / gamma^2 - 1), and take the root of both sides.",
)
def settled(f):
    for gamma in (1.0, 0.95, 1 / math.sqrt(CHI), 0.5):
        tau = math.sqrt((math.pi - 1) * (1 / gamma**2 - 1))
        right(
            f(gamma),
            1 / (1 + tau) ** 2,
            f"for gamma = {gamma:.4f} it settles at {1 / (1 + tau) ** 2:.4f}",
            (1 / (1 + tau), "that is the root of q"),
            (1 / (1 - tau) ** 2 if tau < 1 else math.nan, "that is the larger solution, which q runs away from"),
            relative=1e-4,
        )


@exercise(
    "8.3",
    "Each degree k counts with the weight a_k^2, once the weights are normalised to sum 1.",
    "sum of k a_k^2 over sum of a_k^2, both from k = 1 on.",
)
def mean_degree(f):
    for a in (np.array([0.4, 0.5, 0.3, 0.0, 0.1]), np.array([3.0, 1.0]), np.array([0.0, 0.2, 0.0, 0.7])):
        k, squares = np.arange(len(a)), a**2
        right(
            f(a),
            (k * squares).sum() / squares[1:].sum(),
            "it is not the mean degree",
            ((k * squares).sum(), "the layer is normalised: divide by its variance"),
            ((k * squares).sum() / squares.sum(), "a_0 is the mean, which is subtracted: leave it out of the variance"),
            ((k * a).sum() / a[1:].sum(), "the weights are the squares of the coefficients"),
        )


@exercise(
    "8.4",
    "The gain of one layer must be e^(1/L).",
    "Start with low = 0, high = 5. If the gain at the middle is too large, low = middle, otherwise high = middle.",
)
def beta_for(f):
    for depth, wanted in ((9, 1.014027858568), (50, 1.943125625905)):
        right(f(depth), wanted, f"for {depth} layers it is {wanted:.4f}", relative=1e-3)


# Lesson 9


@exercise(
    "9.1",
    "Reshape to (samples, groups, channels / groups, height, width), normalise over the last three axes, reshape back.",
    "y = x.reshape(n, groups, -1); then mean and var over axis 2 with keepdims=True.",
)
def group_norm(f):
    x = draws(3, 6, 2, 4) + np.arange(6)[:, None, None]

    def normal(groups, eps=0.1, axis=2):
        y = x.reshape(3, groups, -1)
        y = (y - y.mean(axis=axis, keepdims=True)) / np.sqrt(y.var(axis=axis, keepdims=True) + eps)
        return y.reshape(x.shape)

    mixed = x.reshape(3, 3, 2, 8).swapaxes(1, 2)
    mixed = (mixed - mixed.mean(axis=(2, 3), keepdims=True)) / np.sqrt(mixed.var(axis=(2, 3), keepdims=True) + 0.1)
    mixed = mixed.swapaxes(1, 2).reshape(x.shape)
    for groups in (2, 1, 6):
        right(
            f(x, groups, 0.1),
            normal(groups),
            f"with {groups} groups of 6 channels a group does not have mean 0 and variance 1 (up to eps)",
            (normal(1), "you normalised over all channels: that is LayerNorm"),
            (normal(6), "you normalised each channel by itself: that is InstanceNorm"),
            (
                normal(groups, axis=(0, 2)),
                "the samples have been taken together: each sample has statistics of its own",
            ),
            (mixed, "a group consists of neighbouring channels"),
            (normal(groups, eps=0.0), "eps is missing"),
        )


@exercise("9.2", "First subtract the mean of each row, then set the length.", "rows / norm of rows / c1.")
def scaled_ws(f):
    w = draws(4, 9) + 1

    def rows(v):
        return v / np.linalg.norm(v, axis=1, keepdims=True)

    centered = w - w.mean(axis=1, keepdims=True)
    right(
        f(w),
        rows(centered) / C1,
        "rows must have sum 0 and length 1/c1",
        (rows(w) / C1, "the rows do not sum to 0"),
        (rows(centered), "the length must be 1/c1: ReLU has left only the variance c1^2"),
        (rows(centered) * C1, "the length must be 1/c1, not c1"),
        (rows(w - w.mean(axis=0)) / C1, "subtract the mean of each row, not of each column"),
        (rows(w) / C1 - (rows(w) / C1).mean(axis=1, keepdims=True), "subtract the mean first, or the length changes"),
    )


@exercise(
    "9.3",
    "w is linear in g: its gradient is the part of G along v.",
    "With the unit vector e = v/|v|: dL/dg = G.e, and dL/dv = (g/|v|) (G - (G.e) e).",
)
def weight_norm_gradients(f):
    v, g, gradient = 2 * draws(5), 1.7, draws(5, seed=1)
    unit, length = v / np.linalg.norm(v), np.linalg.norm(v)
    along = unit @ gradient
    to_v, to_g = pieces(f(v, g, gradient), 2, "the gradient with respect to v, and that with respect to g")
    right(
        to_g,
        along,
        "the gradient with respect to g does not agree with differences",
        (v @ gradient, "divide v by its length"),
    )
    right(
        to_v,
        g / length * (gradient - along * unit),
        "the gradient with respect to v does not agree with differences",
        (g / length * gradient, "the length |v| depends on v, too: the part along v must vanish"),
        (gradient - along * unit, "the factor g / |v| is missing"),
        (g * (gradient - along * unit), "a longer v turns more slowly: divide by its length"),
    )


@exercise(
    "9.4",
    "It is an integral over a bell curve; many random numbers, or tp.moments.gaussian, will do.",
    'm = tp.moments.gaussian("tanh", 0.0, alpha * sqrt(variance)); the mean square is m.mean**2 + m.std**2.',
)
def dyt_mean_square(f):
    for alpha, variance in ((0.5, 1.0), (0.5, 4.0), (1.0, 0.25)):
        m = tp.moments.gaussian("tanh", 0.0, alpha * math.sqrt(variance))
        wrong = tp.moments.gaussian("tanh", 0.0, alpha * variance)
        right(
            f(alpha, variance),
            m.std**2,
            f"for alpha = {alpha}, variance {variance} it is {m.std**2:.4f}",
            (m.std, "that is the root mean square"),
            (wrong.std**2, "a variance of v is a standard deviation of sqrt(v)"),
            relative=0.01,
        )


# Lesson 10


@exercise(
    "10.1",
    "An error p on n images has the variance p (1 - p) / n, as the fraction of heads of n coins.",
    "The variance of a difference of independent numbers is the sum of their variances; take its root.",
)
def standard_errors_apart(f):
    for p, q, n in ((0.11, 0.125, 2000), (0.5, 0.3, 100)):
        one, two = p * (1 - p) / n, q * (1 - q) / n
        right(
            f(p, q, n),
            abs(p - q) / math.sqrt(one + two),
            f"{p} and {q} on {n} images are {abs(p - q) / math.sqrt(one + two):.2f} standard errors apart",
            (abs(p - q) / math.sqrt(one), "both errors are uncertain"),
            (abs(p - q) / (math.sqrt(one) + math.sqrt(two)), "variances add up, not standard errors"),
            (abs(p - q), "divide it by the standard error of the difference"),
            ((p - q) ** 2 / (one + two), "that is its square: take the root"),
        )


@exercise(
    "10.2",
    "The standard error of a mean of n runs is the standard deviation of one run, over the root of n.",
    "errors.mean() and errors.std(ddof=1) / math.sqrt(len(errors)).",
)
def mean_and_error(f):
    for errors in (np.array([0.31, 0.35, 0.30]), np.array([0.5, 0.52, 0.49, 0.55, 0.6])):
        n, std = len(errors), errors.std(ddof=1)
        mean, error = pieces(f(errors), 2, "the mean and its standard error")
        right(mean, errors.mean(), f"the mean is {errors.mean():.4f}")
        right(
            error,
            std / math.sqrt(n),
            f"the standard error is {std / math.sqrt(n):.4f}",
            (std, "that is the standard deviation of one run; the mean of several is more certain"),
            (errors.std() / math.sqrt(n), "few runs look less scattered than they are: divide by one less, ddof=1"),
        )


@exercise(
    "10.3",
    "Group the runs by their rate, average the validation error of each group, and take the smallest.",
    "A run that diverged has None: count it as an error of 0.9, which is chance.",
)
def best_rate(f):
    """A rate that is best by one lucky run, one that is best on test images, one that diverges, and the right one."""
    table = {0.3: (None, 0.1, None), 0.1: (0.2, 0.6, 0.6), 0.03: (0.3, 0.3, 0.35), 0.01: (0.5, 0.5, 0.45)}
    runs = [{"rate": r, "seed": i, "valid": v, "test": v} for r, vs in table.items() for i, v in enumerate(vs)]
    runs = [run | {"test": 0.05} if run["rate"] == 0.01 else run for run in runs]
    got = f([dict(run) for run in runs])
    expect(not (isinstance(got, float) and got in (0.05, 0.01)), "the test images are for the end: use validation")
    right(
        got,
        0.03,
        "it is another rate",
        (0.5, "return the rate, not its error"),
        (0.3, "a rate at which most runs diverged is no good choice, or compare the mean over seeds"),
        (0.1, "compare the mean over seeds, not the best run"),
    )


# Electives


def convolved(x, w, stride=1, padding=0):
    return F.conv2d(tp.tensor(x), tp.tensor(w), None, stride, padding).numpy()


@exercise(
    "E1.1",
    "np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)]) pads the two last axes.",
    "windows[:, :, ::stride, ::stride] takes every stride-th window.",
)
def convolution(f):
    x, w = draws(2, 3, 9, 9), draws(4, 3, 3, 3, seed=1)
    for stride, padding in ((2, 1), (1, 0), (1, 1), (3, 2)):
        right(
            f(x, w, stride, padding),
            convolved(x, w, stride, padding),
            f"with stride {stride} and padding {padding} it is not what F.conv2d gives",
            (convolved(x, w), f"it ignores stride {stride} and padding {padding}"),
            (convolved(x, w, 1, padding), "it ignores the stride"),
            (convolved(x, w, stride), "it ignores the padding"),
            (convolved(x, w[:, :, ::-1, ::-1], stride, padding), "the filter is turned: networks slide it as it is"),
        )


@exercise(
    "E1.2",
    "A pixel contributes to k x k outputs: which element of the filter does it meet in each of them?",
    "Pad g by k - 1, turn the filters by 180 degrees, and swap their first two axes.",
)
def image_gradient(f):
    x, w = draws(2, 3, 7, 7), draws(4, 3, 3, 3, seed=1)
    image = tp.tensor(x, requires_grad=True)
    out = F.conv2d(image, tp.tensor(w))
    g = draws(*out.shape, seed=2)
    (wanted,) = tp.grad(out, [image], g)
    right(
        f(g, w),
        wanted.numpy(),
        "it does not agree with central differences",
        (convolved(g, w.swapaxes(0, 1), padding=2), "turn the filters by 180 degrees"),
        (
            convolved(g, w[:, :, ::-1, ::-1].swapaxes(0, 1)),
            "pad the gradient by k - 1: pixels at the border count, too",
        ),
    )


@exercise("E1.3", "A tile has m + k - 1 pixels along each axis.", "(m + k - 1)^2 products give m^2 outputs.")
def multiplications(f):
    for m, k in ((2, 3), (4, 5), (4, 3), (1, 5)):
        right(
            f(m, k),
            ((m + k - 1) / m) ** 2,
            f"for {m} x {m} outputs of a {k} x {k} filter it is {((m + k - 1) / m) ** 2:g}",
            ((m + k - 1) ** 2, "that is per tile; a tile has m^2 outputs"),
            ((m + k - 1) / m, "that is along one axis; an image has two"),
            (k * k, "that is without the transforms"),
        )


@exercise(
    "E2.1",
    "np.polynomial.legendre.leggauss(n) gives points and weights on [-1, 1]; stretch both to [-9, 9].",
    "weights * 9 * exp(-z^2/2) / sqrt(2 pi), z = 9 * points; variance = mean of the square minus the squared mean.",
)
def constants(f):
    for name, s in (("tanh", np.tanh), ("z^2", np.square), ("sin(z) + 1", lambda z: np.sin(z) + 1)):
        mean, std = pieces(f(s), 2, "the mean and the standard deviation")
        exact = {"tanh": (0.0, tp.moments.gaussian("tanh").std), "z^2": (1.0, math.sqrt(2.0))}
        want_mean, want_std = exact.get(name, (1.0, math.sqrt((1 - math.exp(-2)) / 2)))
        expect(abs(float(numbers(mean, ())) - want_mean) < 1e-10, f"the mean of {name} is {want_mean:.10f}")
        right(
            std,
            want_std,
            f"the standard deviation of {name} is {want_std:.10f}",
            (want_std**2, "that is the variance"),
            (math.hypot(want_mean, want_std), "that is the root mean square: subtract the squared mean"),
            relative=1e-9,
        )


@exercise("E2.2", "Solve (1 + epsilon)^L = 1 + delta for epsilon.", "N = 1.102 / ((1 + delta)^(1/L) - 1)^2.")
def samples_for(f):
    for depth, delta in ((100, 0.01), (10, 0.1)):
        wanted = 1.102 / ((1 + delta) ** (1 / depth) - 1) ** 2
        right(
            f(depth, delta),
            wanted,
            f"for {depth} layers and {delta:.0%} it takes {wanted:.2g} samples",
            (1.102 / delta**2, "that is for one layer"),
            (depth * 1.102 / delta**2, "the error of c1 is the same in all layers, so it does not average out"),
            relative=0.1,
        )


@exercise("E2.3", "Differentiate both sides of 2 c1^2 = ... with respect to a.", "4 c1 dc1/da = 2 a + 2 (1 - a) / pi.")
def slope_of_c1(f):
    for a in (0.0, 0.25, 1.0, -2.0):
        c1 = math.sqrt((1 + a * a - (1 - a) ** 2 / math.pi) / 2)
        right(
            f(a),
            (a + (1 - a) / math.pi) / (2 * c1),
            f"for a = {a} it is {(a + (1 - a) / math.pi) / (2 * c1):.4f}",
            ((a + (1 - a) / math.pi) / 2, "divide by c1: the derivative of c1^2 is 2 c1 dc1/da"),
            ((a - (1 - a) / math.pi) / (2 * c1), "the derivative of (1 - a)^2 is -2 (1 - a)"),
        )


@exercise(
    "E3.1",
    "x - mean is needed once; multiply it by one over the root of the small array var + eps instead of dividing.",
    "d = x - F.mean(x, axis=0); var = F.mean(d * d, axis=0); return d * (1 / F.sqrt(var + 1e-5)).",
)
def lean_batch_norm(f):
    data = draws(200, 20).astype(np.float32)
    sizes, call = [], tp.Op.__call__

    def watched(op, *inputs):
        out = call(op, *inputs)
        sizes.append(out.size)
        return out

    x = tp.tensor(data, requires_grad=True)
    tp.Op.__call__ = watched
    try:
        out = f(x)
        expect(isinstance(out, tp.Tensor), "return a tensor")
        tp.grad(out, [x], draws(200, 20, seed=1).astype(np.float32))
    finally:
        tp.Op.__call__ = call
    wanted = (data - data.mean(axis=0)) / np.sqrt(data.var(axis=0) + 1e-5)
    right(out, wanted, "a unit does not have mean 0 and variance 1 over the batch", relative=1e-3)
    count = sum(size >= data.size for size in sizes)
    expect(count <= 12, f"it takes {count} ops on whole batches, forwards and backwards; 12 are enough")


@exercise("E3.2", "p.backend and p.dtype, for p in net.parameters().", "{(p.backend, str(p.dtype)) for p in ...}.")
def where_is(f):
    net = tp.nn.Sequential(tp.nn.Linear(2, 3), tp.nn.BatchNorm(3))
    backend = net[0].weight.backend
    expect(isinstance(f(net), set), "return a set of pairs")
    expect(f(net) == {(backend, "float32")}, f"for a new network it is {{({backend!r}, 'float32')}}, not {f(net)}")
    net[1].to(dtype="float64")
    both = {(backend, "float32"), (backend, "float64")}
    expect(f(net) == both, "it misses parameters: one layer of this network is float64, the other float32")


@exercise("E3.3", "NumPy's generators draw float64 unless told otherwise.", "standard_normal(x.shape, np.float32).")
def add_noise(f):
    x = tp.zeros(3, 4)
    out = f(x)
    expect(isinstance(out, tp.Tensor) and out.shape == x.shape, "return a tensor of the shape of x")
    expect(out.data.any(), "there is no noise")
    expect(str(out.dtype) != "float64", "the noise is float64, and so is the result")
    expect(str(out.dtype) == "float32", f"the result is {out.dtype}, not float32")


@exercise(
    "E4.1",
    "Let rank r begin where rank r - 1 ended.",
    "Rank r has the samples from ceil(samples * r / ranks) to ceil(samples * (r + 1) / ranks).",
)
def shares(f):
    for samples, ranks in ((24, 4), (3, 4), (10, 4), (7, 2)):
        got = numbers(f(samples, ranks), (ranks,))
        expect(got.sum() == samples, f"of {samples} samples on {ranks} ranks, {got.sum():.0f} are used")
        expect(got.min() >= 0 and (got == got.round()).all(), "a share is a whole number of samples")
        expect(got.max() - got.min() <= 1, f"{samples} samples on {ranks} ranks: some rank has two more than another")
        expect(samples >= ranks or (np.diff(got) <= 0).all(), "with fewer samples than ranks, the last ranks have none")


@exercise("E4.2", "A very large number swallows a small one.", "1e16 + 1 is 1e16.")
def three_numbers(answer):
    a, b, c = pieces(answer, 3, "a, b and c")
    numbers([a, b, c], (3,))
    expect(all(isinstance(x, float) for x in (a, b, c)), "take floating-point numbers, such as 1.0")
    expect((a + b) + c != a + (b + c), f"both sums are {a + b + c:g}")


@exercise("E4.3", "Try n = 1, 2, 3, ...", "The smallest n with 0.05 log2(n) + 2 (n - 1) / n * send > compute / n.")
def too_many_ranks(f):
    for compute, send in ((100.0, 8.0), (100.0, 1.0), (5.0, 0.1)):

        def first(factor, latency=0.05, compute=compute, send=send):
            meetings = (latency * math.log2(n) + factor * (n - 1) / n * send > compute / n for n in range(1, 10_000))
            return 1 + next(i for i, longer in enumerate(meetings) if longer)

        right(
            f(compute, send),
            first(2),
            f"with {compute:g} ms of computing and {send:g} ms to send it is {first(2)}",
            (first(1), "the gradients travel twice: to the rank that adds them up, and back"),
            (first(2) - 1, "at that number the meeting is still the shorter one"),
        )
