"""Upload the next batch while the device computes with this one."""

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Any

import numpy as np

from ..engine.arrays import Array, HostArray, is_host_array, load_module

Batch = tuple[Array, Array]  # images and labels


def prefetched(batches: Iterable[Batch], backend: str) -> Iterator[Batch]:
    """The batches with their images on the backend; a device receives each during the step before
    its own.

    The images of a batch are overwritten two batches later. Labels stay on the host, where they can
    be checked.

    >>> images = tp.tensor([[1.0], [2.0], [3.0]]).data
    >>> pairs = tp.data.batches((images, tp.tensor([0, 1, 0], dtype=int).data), 2)
    >>> [len(labels) for _, labels in prefetched(pairs, "numpy")]
    [2, 1]
    """
    if backend == "numpy":
        yield from batches
        return
    for (slot, images, labels), _ in pairwise(
        chain(_uploads(batches, load_module(backend)), [None])
    ):
        yield (images if slot is None else slot.images()), labels  # the next one is on its way
        if slot is not None:
            slot.release()


class Slot:
    """Memory for a batch of images, pinned on the host and on the device.

    Host and device work at different times. Before either half is overwritten, its last reader must
    be done: the upload for the half on the host; for the half on the device the step that used the
    images, and at first whatever used this memory before it was ours."""

    def __init__(self, cupy: Any, images: HostArray):
        self.cupy = cupy
        memory = cupy.cuda.alloc_pinned_memory(max(1, images.nbytes))
        self.host = np.frombuffer(memory, images.dtype, images.size).reshape(images.shape)
        self.there = cupy.empty(images.shape, images.dtype)
        self.uploaded: Any = None  # an event, as is `used`
        self.release()

    def fits(self, images: Array) -> bool:
        alike = (
            is_host_array(images)
            and images.dtype == self.host.dtype
            and images.shape[1:] == self.host.shape[1:]
        )
        return alike and len(images) <= len(self.host)

    def upload(self, images: HostArray, stream: Any) -> None:
        """Start copying images to the device."""
        self.count = len(images)
        if self.uploaded is not None and not self.uploaded.done:
            self.uploaded.synchronize()
        self.host[: self.count] = images
        stream.wait_event(self.used)
        self.there[: self.count].set(self.host[: self.count], stream=stream)
        self.uploaded = stream.record()

    def images(self) -> Array:
        """The images on the device, for work that is queued from now on."""
        self.cupy.cuda.get_current_stream().wait_event(self.uploaded)
        return self.there[: self.count]

    def release(self) -> None:
        """Declare that no work queued from now on uses the images."""
        self.used = self.cupy.cuda.get_current_stream().record()


def _uploads(batches: Iterable[Batch], cupy: Any) -> Iterator[Any]:
    """Start an upload into each of two slots in turn; a batch that is not like the first one gets
    no slot."""
    device, stream = cupy.cuda.Device(), cupy.cuda.Stream(non_blocking=True)
    slots: list[Slot] | None = None
    try:
        for number, (images, labels) in enumerate(batches):
            with device:  # whoever takes the batches may have moved on to another one
                if slots is None:
                    try:
                        slots = (
                            [Slot(cupy, images), Slot(cupy, images)]
                            if is_host_array(images)
                            else []
                        )
                    # no pinned memory: simply copied
                    except (MemoryError, cupy.cuda.runtime.CUDARuntimeError):
                        slots = []
                slot = slots[number % 2] if slots and slots[0].fits(images) else None
                if slot is not None:
                    slot.upload(images, stream)
            yield slot, images, labels
    finally:
        # an upload that nobody waited for would write to memory that is no longer ours
        stream.synchronize()
