"""Reads small images with the standard library and NumPy: PGM, PPM, BMP, PNG and .npy.

Sizes are checked before anything is unpacked: a header cannot make the reader allocate more than it is
allowed. JPEG needs a decoder that boards do not have; it is refused by name.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.array_files import ArrayFileError, unpacked
from bb_edge.ir.errors import BBError

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["SUFFIXES", "ImageError", "read_image", "resized"]

SUFFIXES = (".bmp", ".npy", ".pgm", ".png", ".pnm", ".ppm")
"""The names of files that are read as images end so."""

CONVERT = "convert it to PNG or PGM where the data is made: convert photo.jpg photo.png"
_COPY = "copy the file again"


class ImageError(BBError):
    """A file that is not an image, is damaged, or is of a kind that is not read; `where` is its path."""


def read_image(data: bytes, where: str, most: int) -> Array:
    """Returns the pixels of an image, u8 [height, width, channels] with 1, 3 or 4 channels.

    `most` bounds the bytes of these pixels. Raises ImageError.
    """
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png(data, where, most)
    if data[:2] in (b"P2", b"P3", b"P5", b"P6"):
        return _pnm(data, where, most)
    if data.startswith(b"BM"):
        return _bmp(data, where, most)
    if data.startswith(b"\x93NUMPY"):
        return _npy(data, where, most)
    if data.startswith(b"\xff\xd8"):
        raise ImageError("it is a JPEG, which is not read here", where, CONVERT)
    kinds = {b"GIF8": "GIF", b"RIFF": "WebP", b"II*\x00": "TIFF", b"MM\x00*": "TIFF"}
    kind = next((name for start, name in kinds.items() if data.startswith(start)), "")
    what = (
        f"it is a {kind}, which is not read here"
        if kind
        else "it is not in an image format that is read here"
    )
    raise ImageError(what, where, "give PNG, PGM, PPM, BMP or .npy")


def resized(image: Array, height: int, width: int, how: str) -> Array:
    """Returns the image in another size, u8 [height, width, channels].

    `area` takes the mean of what lies under each new pixel, `nearest` the pixel under its middle.
    """
    if image.shape[:2] == (height, width):
        return image
    if how == "nearest":
        rows = ((np.arange(height) + 0.5) * image.shape[0] / height).astype(np.intp)
        columns = ((np.arange(width) + 0.5) * image.shape[1] / width).astype(np.intp)
        picked: Array = image[rows][:, columns]
        return picked
    shrunk = np.tensordot(_shares(image.shape[0], height), image.astype(np.float32), 1)
    shrunk = np.tensordot(_shares(image.shape[1], width), shrunk, (1, 1)).transpose(1, 0, 2)
    pixels: Array = np.clip(np.rint(shrunk), 0, 255).astype(np.uint8)
    return pixels


def _shares(old: int, new: int) -> Array:
    """How much of each old line each new one takes, f32 [new, old]; rows sum to 1."""
    edges = np.arange(new + 1) * (old / new)
    line = np.arange(old)
    under = np.minimum(edges[1:, None], line + 1) - np.maximum(edges[:-1, None], line)
    shares: Array = (np.clip(under, 0, None) * (new / old)).astype(np.float32)
    return shares


def _checked(height: int, width: int, channels: int, most: int, where: str) -> None:
    if height < 1 or width < 1:
        raise ImageError(f"it says that it has {width} × {height} pixels", where, _COPY)
    if height * width * channels > most:
        what = f"its {width} × {height} pixels take {height * width * channels} bytes, {most} are allowed"
        raise ImageError(what, where, "make it smaller, or raise image_bytes")


# --- PGM, PPM -----------------------------------------------------------------------------------------


def _pnm(data: bytes, where: str, most: int) -> Array:
    header: list[int] = []
    place = 2
    while len(header) < 3:
        while place < len(data) and (data[place : place + 1].isspace() or data[place] == 35):
            if data[place] == 35:  # a comment, up to the end of its line
                end = data.find(b"\n", place)
                place = len(data) if end < 0 else end
            else:
                place += 1
        start = place
        while place < len(data) and data[place : place + 1].isdigit():
            place += 1
        if start == place or place - start > 9:
            raise ImageError("its header has no width, height and largest value", where, _COPY)
        header.append(int(data[start:place]))
    width, height, largest = header
    channels = 3 if data[:2] in (b"P3", b"P6") else 1
    if not 0 < largest < 256:
        raise ImageError(f"its largest value is {largest}, 8 bits are read", where, "save it with 8 bits")
    _checked(height, width, channels, most, where)
    count = height * width * channels
    if data[:2] in (b"P5", b"P6"):
        pixels = np.frombuffer(data, np.uint8, offset=min(place + 1, len(data)))[:count]
    else:
        texts = data[place:].split()[:count]
        if not all(text.isdigit() and len(text) < 4 and int(text) < 256 for text in texts):
            raise ImageError("it holds something that is not a pixel", where, _COPY)
        pixels = np.array([int(text) for text in texts], np.uint8)
    if len(pixels) < count:
        raise ImageError(f"it has {len(pixels)} of {count} values: it is cut off", where, _COPY)
    if pixels.max() > largest:
        raise ImageError(f"it has values above its largest one, {largest}", where, _COPY)
    scaled = pixels if largest == 255 else (pixels.astype(np.uint16) * 255 // largest).astype(np.uint8)
    image: Array = scaled.reshape(height, width, channels)
    return image


# --- BMP ----------------------------------------------------------------------------------------------


def _bmp(data: bytes, where: str, most: int) -> Array:
    if len(data) < 54:
        raise ImageError("its header is cut off", where, _COPY)
    start, size, width, height, _, bits, packing = struct.unpack_from("<IIiiHHI", data, 10)
    if size < 40 or packing or bits not in (8, 24, 32):
        what = f"it has {bits} bits per pixel and packing {packing}"
        raise ImageError(what, where, "save it with 8, 24 or 32 bits, not packed")
    upwards, height = height > 0, abs(height)
    channels = bits // 8
    _checked(height, width, max(channels, 3), most, where)
    row = (width * channels + 3) // 4 * 4
    if len(data) < start + row * height:
        raise ImageError("its pixels are cut off", where, _COPY)
    rows = np.frombuffer(data, np.uint8, row * height, start).reshape(height, row)
    pixels = rows[:, : width * channels].reshape(height, width, channels)
    if upwards:
        pixels = pixels[::-1]
    if channels == 1:
        colours = (start - 14 - size) // 4
        table = np.frombuffer(data, np.uint8, max(0, min(colours, 256)) * 4, 14 + size).reshape(-1, 4)
        if pixels.max() >= len(table):
            raise ImageError("it names a colour that its palette lacks", where, _COPY)
        return _without_colour(table[:, 2::-1][pixels[:, :, 0]])
    image: Array = np.ascontiguousarray(pixels[:, :, 2::-1])  # blue, green, red; a fourth byte means nothing
    return image


def _without_colour(image: Array) -> Array:
    """One channel where all three are the same: a palette of grays."""
    gray = (image[:, :, 0] == image[:, :, 1]).all() and (image[:, :, 1] == image[:, :, 2]).all()
    return np.ascontiguousarray(image[:, :, :1] if gray else image)


# --- .npy ---------------------------------------------------------------------------------------------


def _npy(data: bytes, where: str, most: int) -> Array:
    try:
        array = unpacked(io.BytesIO(data), where, len(data))[""]
    except ArrayFileError as error:
        raise ImageError(error.what, where, error.hint) from error
    image = array[:, :, None] if array.ndim == 2 else array
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3, 4):
        what = f"it holds {array.dtype} {list(array.shape)}"
        raise ImageError(what, where, "save u8 [height, width] or [height, width, 1, 3 or 4]")
    _checked(image.shape[0], image.shape[1], image.shape[2], most, where)
    return np.ascontiguousarray(image)


# --- PNG ----------------------------------------------------------------------------------------------

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Bytes of a pixel by colour type: gray, RGB, palette, gray with alpha, RGBA."""


def _png(data: bytes, where: str, most: int) -> Array:
    """8 bits per channel, not interlaced (PNG specification, third edition, sections 5, 9 and 11)."""
    chunks: dict[bytes, bytes] = {}
    packed, place = [], 8
    while place + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, place)
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        end = place + 12 + length
        if end > len(data):
            break
        if zlib.crc32(kind + body) != struct.unpack_from(">I", data, end - 4)[0]:
            raise ImageError(f"its part {kind.decode('latin-1')} is damaged", where, _COPY)
        if kind == b"IDAT":
            packed.append(body)
        else:
            chunks.setdefault(kind, body)
        if kind == b"IEND":
            break
        place = end
    head = chunks.get(b"IHDR", b"")
    if len(head) != 13 or b"IEND" not in chunks:
        raise ImageError("it is cut off", where, _COPY)
    width, height, bits, colour, _, _, interlaced = struct.unpack(">IIBBBBB", head)
    if bits != 8 or colour not in _CHANNELS or interlaced:
        what = f"it has {bits} bits per channel, colour type {colour}{', interlaced' * bool(interlaced)}"
        raise ImageError(what, where, "save it with 8 bits per channel, not interlaced")
    bytes_ = _CHANNELS[colour]
    _checked(height, width, max(bytes_, 3 if colour == 3 else 1), most, where)
    flat = _inflated(packed, height * (1 + width * bytes_), where)
    pixels = _unfiltered(flat, height, width, bytes_, where)
    if colour == 4:
        return np.ascontiguousarray(pixels[:, :, :1])
    if colour != 3:
        return pixels
    palette = np.frombuffer(chunks.get(b"PLTE", b""), np.uint8)
    if not len(palette) or len(palette) % 3 or pixels.max() >= len(palette) // 3:
        raise ImageError("it names a colour that its palette lacks", where, _COPY)
    return _without_colour(palette.reshape(-1, 3)[pixels[:, :, 0]])


def _inflated(packed: list[bytes], size: int, where: str) -> bytes:
    """The bytes of all rows, never more than `size`."""
    unpacker = zlib.decompressobj()
    try:
        flat = unpacker.decompress(b"".join(packed), size)
    except zlib.error as error:
        raise ImageError(f"its pixels are damaged: {error}", where, _COPY) from error
    if len(flat) < size:
        raise ImageError("its pixels are cut off", where, _COPY)
    return flat


def _unfiltered(flat: bytes, height: int, width: int, bytes_: int, where: str) -> Array:
    """Takes back what each row's filter did; u8 [height, width, bytes]."""
    rows = np.frombuffer(flat, np.uint8).reshape(height, 1 + width * bytes_)
    if rows[:, 0].max() > 4:
        raise ImageError("a row has no filter that there is", where, _COPY)
    image = np.zeros((height, width, bytes_), np.uint8)
    above = np.zeros((width, bytes_), np.uint8)
    for y in range(height):
        row = rows[y, 1:].reshape(width, bytes_)
        how = int(rows[y, 0])
        if how == 0:
            image[y] = row
        elif how == 1:
            image[y] = np.cumsum(row, 0, np.uint8)
        elif how == 2:
            image[y] = row + above
        else:
            image[y] = _by_neighbours(row, above, how)
        above = image[y]
    return image


def _by_neighbours(row: Array, above: Array, how: int) -> Array:
    """The filters Average (3) and Paeth (4), in which each pixel depends on the one before it."""
    line, up = row.tolist(), above.tolist()
    left = corner = [0] * len(line[0])
    for x, pixel in enumerate(line):
        for c in range(len(pixel)):
            a, b = left[c], up[x][c]
            if how == 3:
                guess = (a + b) // 2
            else:
                p = a + b - corner[c]
                pa, pb, pc = abs(p - a), abs(p - b), abs(p - corner[c])
                guess = a if pa <= pb and pa <= pc else b if pb <= pc else corner[c]
            pixel[c] = (pixel[c] + guess) & 255
        left, corner = pixel, up[x]
    return np.array(line, np.uint8)
