"""The little that matplotlib needs of Pillow to put an image into an SVG file."""

__version__ = "0"
