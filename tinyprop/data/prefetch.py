"""Upload the next batch while the device computes with this one."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

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
    uploads = _uploads(batches, load_module(backend))
    upload = next(uploads, None)
    while upload is not None:
        following = next(uploads, None)  # its upload is on its way while this batch is used
        slot = upload.slot
        if slot is None:
            yield upload.images, upload.labels
        else:
            yield slot.images(), upload.labels
            slot.release()
        upload = following


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
        if not is_host_array(images) or images.dtype != self.host.dtype:
            return False
        return images.shape[1:] == self.host.shape[1:] and len(images) <= len(self.host)

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


class Upload(NamedTuple):
    """A batch, and the slot that its images are being copied to, if any."""

    slot: Slot | None
    images: Array
    labels: Array


def _uploads(batches: Iterable[Batch], cupy: Any) -> Iterator[Upload]:
    """Start an upload into each of two slots in turn; a batch that is not like the first one gets
    no slot."""
    device = cupy.cuda.Device()
    stream = cupy.cuda.Stream(non_blocking=True)
    slots: list[Slot] | None = None
    try:
        for number, (images, labels) in enumerate(batches):
            with device:  # whoever takes the batches may have moved on to another one
                if slots is None:
                    slots = _two_slots(cupy, images)
                slot = slots[number % 2] if slots and slots[0].fits(images) else None
                if slot is not None:
                    slot.upload(images, stream)
            yield Upload(slot, images, labels)
    finally:
        # an upload that nobody waited for would write to memory that is no longer ours
        stream.synchronize()


def _two_slots(cupy: Any, images: Array) -> list[Slot]:
    """For batches like these images; none if they are on a device already, or if there is no pinned
    memory: then a batch is simply copied when it is used."""
    if not is_host_array(images):
        return []
    try:
        return [Slot(cupy, images), Slot(cupy, images)]
    except (MemoryError, cupy.cuda.runtime.CUDARuntimeError):
        return []
