"""What matplotlib's compiled module of fonts does for text as outlines, on fontTools.

As in FreeType, lengths are integers in units of 1/64 of a pixel, and nothing is hinted."""

import io
import logging
import os
from enum import Enum, Flag, auto
from functools import cached_property

import numpy as np
from fontTools.ttLib import TTFont

logging.getLogger("fontTools").setLevel(logging.ERROR)  # it finds the fonts' dates odd

__freetype_version__ = "2.6.1"  # what matplotlib expects of the one that it was built with
__freetype_build_type__ = "local"
__libraqm_version__ = "0"
CharacterCodeType = GlyphIndexType = int

MOVETO, LINETO, CURVE3, CLOSEPOLY = 1, 2, 3, 79
UNITS = 64  # of a pixel
SMALL = 25  # pixels in an em, below which FreeType shrinks rounded kerning


class FaceFlags(Flag):
    SCALABLE = auto()
    KERNING = auto()


class StyleFlags(Flag):
    NORMAL = 0
    ITALIC = auto()
    BOLD = auto()


class Kerning(Enum):
    DEFAULT = 0
    UNFITTED = 1
    UNSCALED = 2


class RenderMode(Enum):
    NORMAL = 0
    LIGHT = 1
    MONO = 2
    LCD = 3
    LCD_V = 4
    SDF = 5


class LoadFlags(Flag):
    DEFAULT = 0
    NO_SCALE = auto()
    NO_HINTING = auto()
    RENDER = auto()
    NO_BITMAP = auto()
    VERTICAL_LAYOUT = auto()
    FORCE_AUTOHINT = auto()
    CROP_BITMAP = auto()
    PEDANTIC = auto()
    IGNORE_GLOBAL_ADVANCE_WIDTH = auto()
    NO_RECURSE = auto()
    IGNORE_TRANSFORM = auto()
    MONOCHROME = auto()
    LINEAR_DESIGN = auto()
    NO_AUTOHINT = auto()
    COLOR = auto()
    COMPUTE_METRICS = auto()
    BITMAP_METRICS_ONLY = auto()
    NO_SVG = auto()
    TARGET_NORMAL = 0
    TARGET_LIGHT = auto()
    TARGET_MONO = auto()
    TARGET_LCD = auto()
    TARGET_LCD_V = auto()


class FT2Image:
    def __init__(self, width, height):
        raise NotImplementedError("there are no pixels here: save figures as SVG")


class Glyph:
    """The measures of one glyph."""

    def __init__(self, index, points, advance, linear_advance):
        self.index = index
        low, high = (0, 0), (0, 0)
        if len(points):
            low, high = points.min(axis=0).tolist(), points.max(axis=0).tolist()
        self.bbox = (*low, *high)
        self.width, self.height = high[0] - low[0], high[1] - low[1]
        self.horiBearingX, self.horiBearingY = low[0], high[1]
        self.horiAdvance, self.linearHoriAdvance = advance, linear_advance
        self.vertBearingX, self.vertBearingY, self.vertAdvance = 0, 0, self.height


class LayoutItem:
    def __init__(self, ft_object, char, glyph_index, x, y, prev_kern):
        self.ft_object, self.char, self.glyph_index = ft_object, char, glyph_index
        self.x, self.y, self.prev_kern = x, y, prev_kern


class FT2Font:
    """A font file. It is read when the first of its glyphs is needed: fallback fonts are handed
    over with each text."""

    def __init__(
        self,
        filename,
        *,
        face_index=0,
        _fallback_list=None,
        _kerning_factor=None,
        _warn_if_used=False,
        **older,
    ):
        if isinstance(filename, str | bytes | os.PathLike):
            self.fname = os.fspath(filename)
        else:
            self.fname = getattr(filename, "name", "")
            self._content = filename.read()
        self.face_index, self.num_faces = face_index, 1
        self._fallbacks = _fallback_list or []
        self._size, self._units, self._glyph = 12.0, 12 * UNITS, None
        self._text = ([], 0, 0, 0)  # placed glyphs, advance, bottom, top
        self._glyphs = {}

    # -- the file

    @cached_property
    def _font(self):
        source = io.BytesIO(self._content) if hasattr(self, "_content") else self.fname
        return TTFont(source, fontNumber=self.face_index, lazy=True)

    @cached_property
    def _charmap(self):
        if best := self._font.getBestCmap():
            return {code: self._font.getGlyphID(name) for code, name in best.items()}
        return {}

    @cached_property
    def _kerning(self):
        if "kern" not in self._font:
            return {}
        pairs = self._font["kern"].kernTables[0].kernTable
        number = self._font.getGlyphID
        return {(number(a), number(b)): value for (a, b), value in pairs.items()}

    @cached_property
    def _ligatures(self):
        """{first glyph: [(the others, the one glyph for all)]} of Latin letters, longest first."""
        found, number = {}, self._font.getGlyphID
        if "GSUB" not in self._font:
            return found
        table = self._font["GSUB"].table
        for record in table.ScriptList.ScriptRecord:
            system = record.Script.DefaultLangSys
            if record.ScriptTag != "latn" or system is None:
                continue
            for place in system.FeatureIndex:
                feature = table.FeatureList.FeatureRecord[place]
                if feature.FeatureTag != "liga":
                    continue
                for lookup in feature.Feature.LookupListIndex:
                    for subtable in table.LookupList.Lookup[lookup].SubTable:
                        for first, ligatures in getattr(subtable, "ligatures", {}).items():
                            for one in ligatures:
                                others = tuple(number(name) for name in one.Component)
                                entry = (others, number(one.LigGlyph))
                                found.setdefault(number(first), []).append(entry)
        return {k: sorted(v, key=lambda entry: -len(entry[0])) for k, v in found.items()}

    @property
    def units_per_EM(self):
        return self._font["head"].unitsPerEm

    @property
    def num_glyphs(self):
        return self._font["maxp"].numGlyphs

    def get_num_glyphs(self):
        return self.num_glyphs

    @property
    def scalable(self):
        return True

    @property
    def face_flags(self):
        return FaceFlags.SCALABLE

    @property
    def style_flags(self):
        style = self._font["head"].macStyle
        flags = StyleFlags.BOLD if style & 1 else StyleFlags.NORMAL
        return flags | StyleFlags.ITALIC if style & 2 else flags

    @property
    def family_name(self):
        return self._name(1)

    @property
    def style_name(self):
        return self._name(2)

    @property
    def postscript_name(self):
        return self._name(6)

    @property
    def ascender(self):
        return self._font["hhea"].ascent

    @property
    def descender(self):
        return self._font["hhea"].descent

    @property
    def height(self):
        return self.ascender - self.descender + self._font["hhea"].lineGap

    @property
    def bbox(self):
        head = self._font["head"]
        return (head.xMin, head.yMin, head.xMax, head.yMax)

    @property
    def underline_position(self):
        return self._font["post"].underlinePosition

    @property
    def underline_thickness(self):
        return self._font["post"].underlineThickness

    def _name(self, number):
        return self._font["name"].getDebugName(number) or ""

    def get_sfnt(self):
        names = self._font["name"].names
        return {(n.platformID, n.platEncID, n.langID, n.nameID): n.toBytes() for n in names}

    def get_sfnt_table(self, name):
        if name not in self._font:
            return None
        table = {k: v for k, v in vars(self._font[name]).items() if not k.startswith("_")}
        if name == "hhea":
            return table | {"descent": table["descent"], "ascent": table["ascent"]}
        return table

    def get_ps_font_info(self):
        raise ValueError("Could not get PS font info")

    def get_charmap(self):
        return dict(self._charmap)

    def get_char_index(self, codepoint):
        return self._charmap.get(codepoint, 0)

    def get_glyph_name(self, index):
        return self._font.getGlyphName(index)

    def get_name_index(self, name):
        return self._font.getReverseGlyphMap().get(name, 0)

    def set_charmap(self, i):
        """Unicode is always taken."""

    select_charmap = set_charmap

    def _set_transform(self, matrix, delta):
        """Text is turned by the transform of its path."""

    # -- sizes

    def set_size(self, ptsize, dpi):
        self._size = ptsize * dpi / 72
        self._units = round(ptsize * UNITS * dpi / 72)
        for font in self._fallbacks:
            font.set_size(ptsize, dpi)

    def _scaled(self, lengths):
        """Lengths in the font's own units as 1/64 pixels, rounded away from zero at a half."""
        scaled = np.asarray(lengths) * self._units / self.units_per_EM
        return (np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)).astype(int)

    def clear(self):
        self._glyph, self._text = None, ([], 0, 0, 0)

    def get_kerning(self, left, right, mode):
        value = self._kerning.get((left, right), 0)
        if mode is Kerning.UNSCALED:
            return value
        units = int(self._scaled(value))
        if mode is Kerning.UNFITTED:
            return units
        if self._size < SMALL:
            units = round(units * int(self._size) / SMALL)
        return (units + UNITS // 2) // UNITS * UNITS

    # -- glyphs

    def load_char(self, charcode, flags=LoadFlags.DEFAULT):
        return self.load_glyph(self.get_char_index(charcode), flags)

    def load_glyph(self, glyphindex, flags=LoadFlags.DEFAULT):
        key = (glyphindex, self._units)
        if key not in self._glyphs:
            name = self._font.getGlyphName(glyphindex)
            table = self._font["glyf"]
            points = self._scaled(np.array(table[name].getCoordinates(table)[0]).reshape(-1, 2))
            advance = self._font["hmtx"][name][0]
            linear = round(advance * self._units * 1024 / self.units_per_EM)
            glyph = Glyph(glyphindex, points, int(self._scaled(advance)), linear)
            self._glyphs[key] = glyph
        self._glyph = self._glyphs[key]
        return self._glyph

    def get_path(self):
        """The outline of the glyph that was loaded last: vertices and codes."""
        table = self._font["glyf"]
        name = self._font.getGlyphName(self._glyph.index)
        points, ends, on_curve = table[name].getCoordinates(table)
        points = self._scaled(np.array(points).reshape(-1, 2))
        vertices, codes, start = [], [], 0
        for end in ends:
            contour = slice(start, end + 1)
            _outline(points[contour], [bool(f & 1) for f in on_curve[contour]], vertices, codes)
            start = end + 1
        return np.array(vertices, float).reshape(-1, 2) / UNITS, np.array(codes, np.uint8)

    # -- text

    def _layout(self, text, flags=LoadFlags.DEFAULT, features=None, language=None):
        items, pen = [], 0
        shaped = self._shaped(text)
        for i, (font, chars, index) in enumerate(shaped):
            kern = 0
            if i and shaped[i - 1][0] is font:
                kern = font.get_kerning(shaped[i - 1][2], index, Kerning.UNFITTED)
            pen += kern
            items.append(LayoutItem(font, chars, index, pen / UNITS, 0.0, kern / UNITS))
            pen += font.load_glyph(index, flags).horiAdvance
        self._pen = pen
        return items

    def _shaped(self, text):
        """(font, characters, glyph) with ligatures."""
        found = []
        for char in text:
            fonts = [self, *self._fallbacks]
            having = (font for font in fonts if font.get_char_index(ord(char)))
            font = next(having, self)
            found.append((font, char, font.get_char_index(ord(char))))
        place = 0
        while place < len(found):
            font, char, index = found[place]
            for others, ligature in font._ligatures.get(index, ()):
                following = found[place + 1 : place + 1 + len(others)]
                if [(font, other) for other in others] == [(f, i) for f, _, i in following]:
                    chars = char + "".join(c for _, c, _ in following)
                    found[place : place + 1 + len(others)] = [(font, chars, ligature)]
                    break
            place += 1
        return found

    def set_text(self, string, angle=0.0, flags=LoadFlags.DEFAULT, *, features=None, language=None):
        items = self._layout(string, flags)
        boxes = [item.ft_object.load_glyph(item.glyph_index).bbox for item in items]
        bottom = min((box[1] for box in boxes), default=0)
        top = max((box[3] for box in boxes), default=0)
        self._text = (items, self._pen, bottom, top)
        return np.array([[item.x, item.y] for item in items]).reshape(-1, 2)

    def get_width_height(self):
        _, advance, bottom, top = self._text
        return advance, top - bottom

    def get_descent(self):
        return -self._text[2]


def _outline(points, on_curve, vertices, codes):
    """Append a closed line of quadratic curves. Between two points off the curve there is one on
    it, halfway."""
    if not len(points):
        return
    points = [tuple(point) for point in points.tolist()]
    if not on_curve[0]:
        if on_curve[-1]:
            points, on_curve = [points[-1], *points[:-1]], [True, *on_curve[:-1]]
        else:
            points, on_curve = [_middle(points[0], points[-1]), *points], [True, *on_curve]
    vertices.append(points[0])
    codes.append(MOVETO)
    control = None
    for point, on in zip([*points[1:], points[0]], [*on_curve[1:], True], strict=True):
        if control is None:
            if on:
                vertices.append(point)
                codes.append(LINETO)
            else:
                control = point
            continue
        end = point if on else _middle(control, point)
        vertices.extend([control, end])
        codes.extend([CURVE3, CURVE3])
        control = None if on else point
    vertices.append((0, 0))
    codes.append(CLOSEPOLY)


def _middle(a, b):
    """As in C, halves are cut off towards zero."""
    return tuple(int((x + y) / 2) for x, y in zip(a, b, strict=True))
