"""Notes in a PNG file, which are dropped."""

from .Image import Image


class PngInfo:
    def add_text(self, key, value):
        pass


class PngImageFile(Image):
    pass
