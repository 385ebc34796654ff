"""Pictures for notebooks, which need nothing from elsewhere."""

import base64
import html


def image_tag(png: bytes, alt: str, width: int) -> str:
    """A picture that is part of the page.

    >>> image_tag(b"PNG", "curves", 640)
    '<img src="data:image/png;base64,UE5H" alt="curves" width="640">'
    """
    data = base64.b64encode(png).decode("ascii")
    return f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt)}" width="{width}">'
