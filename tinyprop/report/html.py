"""Pictures for notebooks, which need nothing from elsewhere."""

import base64
import html
import struct
import zlib
from typing import Any

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GRAY, COLOR = 0, 2  # types of pixels in a PNG file


def png(pixels: Any) -> bytes:
    """A PNG file of bytes (H, W) or (H, W, 3).

    >>> png(tp.zeros(2, 3, dtype="uint8").numpy())[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width = pixels.shape[:2]
    kind = GRAY if pixels.ndim == 2 else COLOR
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return SIGNATURE + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def image_tag(png: bytes, alt: str, width: int, style: str = "") -> str:
    """A picture that is part of the page.

    >>> image_tag(b"PNG", "curves", 640)
    '<img src="data:image/png;base64,UE5H" alt="curves" width="640">'
    """
    data = base64.b64encode(png).decode("ascii")
    attributes = f' alt="{html.escape(alt)}" width="{width}"'
    if style:
        attributes += f' style="{html.escape(style)}"'
    return f'<img src="data:image/png;base64,{data}"{attributes}>'
