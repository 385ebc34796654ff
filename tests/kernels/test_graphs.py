"""Steps as CUDA graphs: one launch each, the same bits as kernel by kernel, and never a step that
is silently wrong."""

import warnings

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tinyprop import nn
from tinyprop.kernels import graphs
from tinyprop.train import TrainingStep

from ..conftest import on_a_device


def batch(rng, n=6):
    return rng.integers(0, 256, (n, 3, 32, 32)).astype(np.uint8), rng.integers(0, 10, n)


def paper_network(norm, images):
    tp.manual_seed(0)
    with tp.use_backend("cupy"):
        return nn.Sequential(
            tp.data.GlobalNormalizer((3, 32, 32)).fit(images),
            *nn.build(nn.NIN, norm=norm, width=0.1),
        )


class Net(nn.Module):
    """Small, with something in its forward that tests choose. It counts as one of tp.nn, which are
    recorded by default."""

    __module__ = "tinyprop.nn"

    def __init__(self, between=lambda x: x, **layer):
        self.first, self.last = nn.NormPropLinear(5, 8, **layer), nn.Linear(8, 3)
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


def small_step(graph, between=lambda x: x, optimizer=tp.optim.SGD, **layer):
    tp.manual_seed(0)
    with tp.use_backend("cupy"):
        net = Net(between, **layer)
    return TrainingStep(net, optimizer(net.parameters(), 0.1), graph=graph)


def small_batch(rng, n=4):
    return rng.standard_normal((n, 5)).astype("f4"), rng.integers(0, 3, n)


def state(step):
    return {name: value.get() for name, value in step.model.state_dict().items()}


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def trained_alike(rng, edit=lambda step, i: None, batches=None, **options):
    """Eight steps in both ways, with a schedule and something done before each: both must give the
    same bits, also of each batch's outputs; returns the step that replays."""
    batches = batches or [small_batch(rng) for _ in range(8)]
    found = {}
    for graph in (None, False):
        step, losses, outputs = small_step(graph, **options), [], []
        for i, (x, labels) in enumerate(batches):
            step.optimizer.lr = 0.1 / (1 + i)
            edit(step, i)
            losses.append(step(x, labels))
            outputs.append(step.last_outputs.get())
        numbers = {"losses": np.array([float(loss) for loss in losses])}
        numbers["outputs"] = np.concatenate(outputs)
        found[graph] = step, {**numbers, **state(step)}
    assert_same_bits(found[None][1], found[False][1])
    return found[None][0]


class TestOnADevice:
    pytestmark = on_a_device

    @pytest.mark.parametrize(
        ("norm", "optimizer"),
        [("normprop", tp.optim.SGD), ("batch", tp.optim.SGD), ("normprop", tp.optim.Adam)],
    )
    def test_ten_steps_are_eight_launches_and_the_same_bits(self, norm, optimizer, rng):
        """The first step is run as usual, and the second recorded. All losses are read at the
        end."""
        emucupy = pytest.importorskip("emucupy", reason="only the emulator counts")
        batches, found = [batch(rng) for _ in range(3)], []
        for graph in (True, False):
            net = paper_network(norm, batches[0][0])
            step = TrainingStep(
                net, optimizer(net.parameters(), 0.01, weight_decay=0.001), graph=graph
            )
            losses = []
            for i in range(10):
                step.optimizer.lr = 0.01 * (1 - i / 10)
                if i == 2:
                    emucupy.reset()
                losses.append(step(*batches[i % 3]))
            counts = emucupy.stats()
            assert counts["d2h"] == counts["races"] == 0
            if graph:
                assert counts["graph_launches"] == 8
                assert counts["launches"] == counts["captures"] == 0
                assert counts["library_calls"] == counts["kernels"] == {}
                assert (counts["h2d"], counts["d2d"], counts["allocations"]) == (16, 8, 0), (
                    "a batch, and a loss"
                )
            found.append({"losses": np.array([float(loss) for loss in losses]), **state(step)})
        assert_same_bits(*found)
        assert len(set(found[0]["losses"])) == 10

    def test_images_of_the_prefetcher_and_labels_on_the_device_are_copied_there(self, rng):
        import cupy

        pairs = [small_batch(rng) for _ in range(6)]
        there = [(cupy.asarray(x), cupy.asarray(labels)) for x, labels in pairs]
        trained_alike(
            rng, batches=[(x, labels) for (x, _), (_, labels) in zip(there, pairs, strict=True)]
        )
        trained_alike(rng, batches=there)
        trained_alike(rng, batches=[(cupy.asfortranarray(x), labels) for x, labels in there])

    @pytest.mark.parametrize(
        "layer", [{"mode": "exact"}, {"activation": "prelu"}, {"activation": "tanh"}]
    )
    def test_constants_that_are_learnt_are_part_of_the_graph(self, layer, rng):
        step = trained_alike(rng, **layer)
        assert step.no_graph is None
        assert step.replays.graphs

    def test_the_stream_and_the_device_of_the_caller_are_used_and_left_alone(self, rng):
        import cupy

        pairs = [small_batch(rng) for _ in range(5)]
        with cupy.cuda.Stream(non_blocking=True) as stream:
            trained_alike(rng, batches=pairs)
            assert cupy.cuda.get_current_stream() == stream
            assert cupy.cuda.get_allocator() is not None
        assert cupy.cuda.get_current_stream() == cupy.cuda.Stream.null
        assert cupy.cuda.Device().id == 0

    def test_each_shape_has_its_graph_up_to_a_number(self, rng, monkeypatch):
        monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
        step = trained_alike(rng, batches=[small_batch(rng, n) for n in (4, 3, 2) * 4])
        assert [key[0][0] for key in step.replays.graphs] == [4, 3]
        assert step.no_graph is None

    def test_modes_have_their_own_graphs_and_plain_rules_none(self, rng):
        step = small_step(None)
        x, labels = small_batch(rng)
        for _ in range(2):
            step(x, labels)
        with F.exact_convolution():
            step(x, labels)
            step(x, labels)
        assert len(step.replays.graphs) == 2
        expected = small_step(False)
        for _ in range(4):
            expected(x, labels)
        with tp.plain():
            loss = [float(s(x, labels)) for s in (step, expected)]
        assert loss[0] == loss[1]

    @pytest.mark.parametrize(
        "edit",
        [
            lambda step: setattr(step.model.last.weight, "data", step.model.last.weight.data * 2),
            lambda step: setattr(step.model, "between", lambda x: x * 3.0),
            lambda step: setattr(step.model, "last", step.model.last),
            lambda step: setattr(step.optimizer, "momentum", 0.0),
            lambda step: setattr(step, "loss", F.nll_loss),
            lambda step: setattr(step, "optimizer", tp.optim.RMSProp(step.model.parameters(), 0.1)),
            lambda step: step.model.load_state_dict(
                {k: v * 0.5 for k, v in step.model.state_dict().items()}
            ),
            lambda step: step.optimizer.load_state_dict(
                {k: v + 0.5 for k, v in step.optimizer.state_dict().items()}
            ),
        ],
    )
    def test_what_is_edited_between_steps_counts(self, edit, rng):
        step = trained_alike(rng, lambda step, i: edit(step) if i == 4 else None)
        assert step.no_graph is None
        assert step.replays.graphs

    def test_adam_goes_on_from_a_saved_state(self, rng):
        states = [{}, {}]

        def edit(step, i):
            if i == 2:
                states.append({k: v.copy() for k, v in step.optimizer.state_dict().items()})
            if i == 5:
                step.optimizer.load_state_dict(states[-1])

        step = trained_alike(rng, edit, optimizer=tp.optim.Adam)
        assert step.optimizer.steps == [5] * len(step.optimizer.params)

    def test_wrong_labels_are_refused_and_ignored_ones_do_not_count(self, rng):
        pairs = [small_batch(rng) for _ in range(8)]
        pairs[4][1][1] = pairs[5][1][0] = -100
        step = trained_alike(rng, batches=pairs)
        before = state(step)
        for wrong in (3, -1):
            with pytest.raises(IndexError, match=r"(?s)3 classes"):
                step(pairs[0][0], np.array([0, 1, wrong, 2]))
        step.optimizer.lr = float("nan")
        with pytest.raises(ValueError, match="lr=nan"):
            step(*pairs[0])
        assert_same_bits(state(step), before)

    def test_what_is_refused_the_first_time_is_refused_the_second_time(self, rng):
        step, (x, labels) = small_step(None), small_batch(rng)
        for wrong in (labels.astype("f4"), labels[:, None], labels + 3):
            for _ in range(3):
                with pytest.raises((tp.ShapeError, IndexError)):
                    step(x, wrong)
        assert not step.replays.graphs

    @pytest.mark.parametrize(
        ("between", "reason"),
        [
            (lambda x: x * float(abs(x).max().item() > 0), "capturing"),  # waits for the device
            (lambda x: x * tp.tensor([x.shape[0] * 1.0], backend="cupy"), "something is uploaded"),
            (
                lambda x: x * float(tp.engine.random.generator().random()),
                "random numbers were drawn on the host",
            ),
        ],
        ids=["synchronises", "uploads", "random"],
    )
    @pytest.mark.parametrize("optimizer", [tp.optim.SGD, tp.optim.Adam])
    def test_what_cannot_be_recorded_is_computed_as_usual_with_a_reason(
        self, between, reason, optimizer, rng
    ):
        pairs = [small_batch(rng) for _ in range(4)]
        step = small_step(None, between, optimizer)
        step(*pairs[0])
        with pytest.warns(RuntimeWarning, match="without CUDA graphs: .*" + reason) as said:
            step(*pairs[1])
        for x, labels in pairs[2:]:
            step(x, labels)
        assert len(said) == 1
        assert "\n" not in str(said[0].message)
        expected = small_step(False, between, optimizer)
        for x, labels in pairs:
            expected(x, labels)
        if reason in ("capturing", "something is uploaded"):  # the others draw random numbers
            assert_same_bits(state(step), state(expected))
        if optimizer is tp.optim.Adam:
            assert step.optimizer.steps == expected.optimizer.steps
        strict = small_step(True, between, optimizer)
        strict(*pairs[0])
        with pytest.raises(RuntimeError, match="cannot be recorded"):
            strict(*pairs[1])

    def test_a_replay_draws_the_masks_that_its_step_would_draw(self, rng):
        pairs = [small_batch(rng)] * 8
        step = trained_alike(
            rng, batches=pairs, between=lambda x: F.dropout(F.dropout(x, 0.5), 0.1)
        )
        assert step.no_graph is None
        step.optimizer.lr = 0.0
        assert len({float(step(*pairs[0])) for _ in range(4)}) == 4, "with new masks every time"

    @pytest.mark.parametrize("stranger", ["module", "subclass", "loss", "replaced loss"])
    def test_what_a_stranger_does_in_python_is_done_in_every_step(self, stranger, rng):
        """A replay would not repeat it, so a stranger's code is recorded only with graph=True."""
        calls = []

        class Counting(nn.Module):
            def forward(self, x):
                calls.append(x.shape)
                return x

        class Masked(nn.NormPropLinear):
            def weighted_sum(self, x, weight):
                calls.append(x.shape)
                return super().weighted_sum(x, weight)

        def loss(outputs, labels):
            calls.append(outputs.shape)
            return F.cross_entropy(outputs, labels)

        def step_of(graph):
            tp.manual_seed(0)
            with tp.use_backend("cupy"):
                kind = Masked if stranger == "subclass" else nn.NormPropLinear
                net = nn.Sequential(kind(5, 8), nn.Linear(8, 3))
                if stranger == "module":
                    net.append(Counting())
            optimizer = tp.optim.SGD(net.parameters(), 0.1)
            given = {"loss": loss} if stranger == "loss" else {}
            step = TrainingStep(net, optimizer, graph=graph, **given)
            if stranger == "replaced loss":
                step.loss = loss
            return step

        step = step_of(graph=None)
        for _ in range(5):
            step(*small_batch(rng))
        assert len(calls) == 5
        assert "in Python would not be repeated" in step.no_graph
        if stranger != "replaced loss":
            calls.clear()
            step = step_of(graph=True)
            for _ in range(5):
                step(*small_batch(rng))
            assert len(calls) == 2  # the first step, and the recording
            assert step.replays.graphs

    def test_memory_does_not_grow(self, rng):
        step, pairs = small_step(True), [small_batch(rng) for _ in range(3)]
        for pair in pairs:
            step(*pair)
        (replay,) = step.replays.graphs.values()
        before = replay.pool.total_bytes()
        for _ in range(5):
            for pair in pairs:
                step(*pair)
        assert replay.pool.total_bytes() == before

    def test_a_mailbox_keeps_its_memory_until_the_last_copy_is_over(self):
        """The pool hands it to the next one, which fills it."""
        emucupy = pytest.importorskip("emucupy", reason="only the emulator knows what is over")
        import cupy

        for _ in range(2):
            box = graphs.Mailbox(cupy, (4,), np.dtype("int64"), np.dtype("float32"))
            for _ in range(graphs.SLOTS):
                box.next_slot()
                box.upload(cupy.cuda.get_current_stream())
            del box
        assert emucupy.stats()["races"] == 0

    def test_what_is_known_not_to_work_is_said_at_once(self):
        class Own(tp.optim.SGD):
            def update(self, due):
                super().update(due)

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert "Own.update" in small_step(None, optimizer=Own).no_graph


def test_on_the_host_there_are_no_graphs():
    net = nn.Linear(2, 2)
    assert "not on a GPU" in TrainingStep(net, tp.optim.SGD(net.parameters(), 0.1)).no_graph
    with pytest.raises(ValueError, match=r"(?s)graph=True.*not on a GPU.*graph=None"):
        TrainingStep(net, tp.optim.SGD(net.parameters(), 0.1), graph=True)
