"""`bb.ImageFolderDataSource`: a folder per class; formats against another reader, hostile files."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge.components import ImageFolderDataSource
from bb_edge.components.image_files import ImageError, read_image, resized
from bb_edge.roles import ComponentEnv, ComponentError

Image = pytest.importorskip("PIL.Image", reason="the oracle of formats comes with matplotlib")

Ctx = Any
MOST = 1 << 20


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    """Smooth, so that encoders choose all of their filters."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: shape[0], : shape[1]]
    smooth = 128 + 60 * np.sin(x / 3) + 40 * np.cos(y / 5)
    channels = shape[2] if len(shape) == 3 else 1
    image = smooth[:, :, None] + rng.normal(0, 4, (*shape[:2], channels))
    return np.clip(image, 0, 255).astype(np.uint8)


def saved(image: np.ndarray, kind: str, mode: str = "") -> bytes:
    file = io.BytesIO()
    plain = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    (plain.convert(mode) if mode else plain).save(file, kind)
    return file.getvalue()


def png(rows: bytes, width: int, height: int, colour: int = 0, bits: int = 8, more: bytes = b"") -> bytes:
    """A PNG of these filtered rows."""

    def part(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + part(b"IHDR", head)
        + more
        + part(b"IDAT", zlib.compress(rows))
        + part(b"IEND", b"")
    )


# --- formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("width", [1, 5, 16])
def test_images_are_read_as_another_reader_reads_them(kind: str, channels: int, width: int) -> None:
    image = pixels(11, width, channels)
    np.testing.assert_array_equal(read_image(saved(image, kind), "x", MOST), image)


def test_alpha_and_palettes_of_png() -> None:
    image = pixels(9, 7, 4)
    np.testing.assert_array_equal(read_image(saved(image, "PNG"), "x", MOST), image)
    palette = saved(pixels(9, 7, 3), "PNG", "P")
    expected = np.array(Image.open(io.BytesIO(palette)).convert("RGB"))
    np.testing.assert_array_equal(read_image(palette, "x", MOST), expected)
    gray = saved(pixels(9, 7, 3), "PNG", "LA")
    np.testing.assert_array_equal(
        read_image(gray, "x", MOST)[:, :, 0], np.array(Image.open(io.BytesIO(gray)))[:, :, 0]
    )


@pytest.mark.parametrize("how", range(5))
def test_each_filter_of_png(how: int) -> None:
    rng = np.random.default_rng(how)
    rows = b"".join(bytes([how]) + rng.bytes(18) for _ in range(5))
    data = png(rows, 6, 5, colour=2)
    np.testing.assert_array_equal(read_image(data, "x", MOST), np.array(Image.open(io.BytesIO(data))))


def test_texts_of_pixels_comments_and_small_ranges() -> None:
    assert read_image(b"P2 # a comment\n2 # two\n2\n15\n0 15\n5 10\n", "x", MOST).ravel().tolist() == [
        0,
        255,
        85,
        170,
    ]
    assert read_image(b"P3\n1 1 255\n1 2 3", "x", MOST).ravel().tolist() == [1, 2, 3]


def test_npy() -> None:
    file = io.BytesIO()
    np.save(file, pixels(4, 3)[:, :, 0])
    np.testing.assert_array_equal(read_image(file.getvalue(), "x", MOST), pixels(4, 3))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xd8\xff\xe0", "it is a JPEG.*convert photo.jpg photo.png"),
        (b"GIF89a", "it is a GIF"),
        (b"RIFF\x00\x00", "it is a WebP"),
        (b"", "not in an image format that is read here"),
        (b"P5 2 2 65535\n", "8 bits are read"),
        (b"P5 2 2", "no width, height and largest"),
        (b"P5 2 2 255\n\x00", "1 of 4 values: it is cut off"),
        (b"P5 0 2 255\n", "0 × 2 pixels"),
        (b"P5 99999 99999 255\n", "1048576 are allowed"),
        (b"P2 1 1 255\nx", "not a pixel"),
        (b"P5 1 1 10\n\xff", "above its largest"),
        (b"BM", "cut off"),
        (png(b"\x00\x00", 1, 1, bits=16), "16 bits per channel"),
        (png(b"\x05\x00", 1, 1), "no filter"),
        (png(b"\x00", 1, 1), "cut off"),
        (png(b"\x00\x07", 1, 1, colour=3), "palette lacks"),
        (png(b"\x00", 30_000, 30_000), "are allowed"),
        (png(b"\x00\x07", 1, 1)[:-20], "cut off"),
        (png(b"\x00\x07", 1, 1).replace(b"IDAT", b"IDAX"), "damaged"),
    ],
)
def test_what_is_no_such_image_is_refused_by_name(data: bytes, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        read_image(data, "x", MOST)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM"])
def test_a_damaged_image_is_a_typed_error_or_another_image(kind: str) -> None:
    whole = saved(pixels(8, 8, 3), kind)
    for at in range(0, len(whole), 3):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]):
            with contextlib.suppress(ImageError):
                assert read_image(data, "x", MOST).dtype == np.uint8


def test_a_bomb_is_not_unpacked() -> None:
    bomb = png(bytes(50_000_000), 100, 100)
    assert len(bomb) < 100_000
    assert read_image(bomb, "x", MOST).shape == (100, 100, 1)


@pytest.mark.parametrize("how", ["area", "nearest"])
def test_sizes(how: str) -> None:
    image = pixels(12, 9, 3)
    assert resized(image, 12, 9, how) is image
    flat = np.full((7, 5, 1), 200, np.uint8)
    for size in ((3, 2), (14, 11), (1, 1)):
        assert resized(image, *size, how).shape == (*size, 3)
        assert (resized(flat, *size, how) == 200).all()
    halves = np.array([[0, 0, 100, 100]], np.uint8)[:, :, None]
    assert resized(halves, 1, 2, how).ravel().tolist() == [0, 100]
    if how == "area":
        assert resized(halves, 1, 1, how).item() == 50


# --- folders --------------------------------------------------------------------------------------


@pytest.fixture
def shard(tmp_path: Path) -> Callable[..., ImageFolderDataSource]:
    """Two cats and a dog, of several sizes and formats."""
    for name, image, kind in (
        ("cat/1.png", pixels(8, 8, 3), "PNG"),
        ("cat/2.ppm", pixels(16, 8, 3, seed=1), "PPM"),
        ("dog/1.BMP", pixels(8, 8, 1, seed=2), "BMP"),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(saved(image, kind))
    (tmp_path / "cat" / ".DS_Store").write_text("x")

    def construct(**config: object) -> ImageFolderDataSource:
        settings = {"path": str(tmp_path), "shuffle": False, **config}
        return ImageFolderDataSource.construct(ComponentEnv("photos", "Client", settings, seed=7))

    return construct


def test_a_folder_per_class(shard: Callable[..., Any], ctx: Ctx) -> None:
    x, y = shard().next_batch(ctx)
    assert (x.shape, x.dtype, y.tolist(), y.dtype) == ((3, 3, 8, 8), np.float32, [0, 0, 1], np.int64)
    assert 0 <= x.min() < x.max() <= 1
    np.testing.assert_allclose(x[0], pixels(8, 8, 3).transpose(2, 0, 1) / np.float32(255))


def test_layout_channels_size_and_scaling(shard: Callable[..., Any], ctx: Ctx) -> None:
    source = shard(layout="nhwc", channels=1, size=[4, 6], scale="standard")
    x, _ = source.next_batch(ctx)
    assert x.shape == (3, 4, 6, 1) and abs(x.mean()) < 1e-5 and x.std() == pytest.approx(1, rel=1e-4)
    assert source.batch_like()[0].shape == x.shape
    ports = ImageFolderDataSource.port_types({"size": [4, 6], "layout": "nhwc", "channels": 1}, {})
    assert ports == {"NextBatch.batch": "F32[?,4,6,1]", "NextBatch.labels": "I64[?]"}


def test_classes_keep_their_numbers_where_a_device_lacks_some(shard: Callable[..., Any], ctx: Ctx) -> None:
    _, y = shard(classes=["bird", "dog", "cat"], one_hot=3).next_batch(ctx)
    assert y.argmax(1).tolist() == [1, 2, 2]


def test_a_restart_goes_on_where_it_stopped(shard: Callable[..., Any], ctx: Ctx) -> None:
    one, other = shard(batch_size=2, shuffle=True), shard(batch_size=2, shuffle=True)
    one.next_batch(ctx)
    other.restore(one.serialize())
    np.testing.assert_array_equal(one.next_batch(ctx)[0], other.next_batch(ctx)[0])


def hostile(folder: Path, kind: str) -> None:
    place = folder / "cat" / "3.png"
    if kind == "jpeg":
        (folder / "cat" / "3.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to(folder / "cat" / "1.png")
    elif kind == "text":
        (folder / "cat" / "notes.txt").write_text("x")
    elif kind == "folder":
        place.mkdir()
    elif kind == "huge":
        with place.open("wb") as file:
            file.truncate(1 << 40)  # takes no room on the disk
    else:
        place.write_bytes((folder / "cat" / "1.png").read_bytes()[:60])


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("jpeg", "it is a JPEG"),
        ("fifo", "a FIFO"),
        ("link", "it is a link"),
        ("text", "its name is not that of an image"),
        ("folder", "a folder"),
        ("huge", "larger than"),
        ("cut", "cut off"),
    ],
)
def test_a_wrong_file_is_named_or_skipped(
    shard: Callable[..., Any], tmp_path: Path, ctx: Ctx, kind: str, says: str
) -> None:
    hostile(tmp_path, kind)
    with pytest.raises(ComponentError, match=says) as caught:
        shard()
    assert "slot 'photos'" in caught.value.where and "bad_files" in caught.value.hint
    source = shard(bad_files="skip")
    assert source.num_samples(ctx) == 3
    numbered, note = source.notes
    assert "classes are numbered by the folders that are here: 0 cat, 1 dog;" in numbered
    assert note.startswith("slot 'photos': 1 files are skipped; the first: ") and str(tmp_path) in note


@pytest.mark.parametrize("name", ["4.png", "README"])
def test_a_file_beside_the_folders_is_named_or_skipped(
    shard: Callable[..., Any], tmp_path: Path, ctx: Ctx, name: str
) -> None:
    (tmp_path / name).write_bytes(saved(pixels(8, 8, 3), "PNG"))
    with pytest.raises(ComponentError, match="beside the folders of the classes") as caught:
        shard()
    assert name in caught.value.where and "move it" in caught.value.hint and "skip" in caught.value.hint
    (tmp_path / name).rename(tmp_path / f".{name}")
    shard()
    (tmp_path / f".{name}").rename(tmp_path / name)
    source = shard(bad_files="skip")
    assert source.num_samples(ctx) == 3
    numbered, note = source.notes
    assert "classes are numbered by the folders that are here: 0 cat, 1 dog;" in numbered
    assert note.startswith(
        f"slot 'photos': 1 files are skipped; the first: {tmp_path / name}: it lies beside"
    )


def test_an_empty_folder_of_a_class_is_named_or_told(
    shard: Callable[..., Any], tmp_path: Path, ctx: Ctx
) -> None:
    (tmp_path / "cow").mkdir()
    (tmp_path / "cow" / ".DS_Store").write_text("x")
    with pytest.raises(ComponentError, match="holds no images, and is a class by its name") as caught:
        shard()
    assert str(tmp_path / "cow") in caught.value.where and "classes" in caught.value.hint
    told = f"slot 'photos': 1 classes have no images; the first: {tmp_path / 'cow'}"
    skipping, named = shard(bad_files="skip"), shard(classes=["cow", "dog", "cat"])
    assert skipping.notes[1:] == named.notes == [told]
    assert "0 cat, 1 cow, 2 dog; a device that lacks one of them numbers otherwise" in skipping.notes[0]
    assert skipping.next_batch(ctx)[1].tolist() == [0, 0, 2]
    assert named.next_batch(ctx)[1].tolist() == [1, 2, 2]
    (tmp_path / "cow" / "1.txt").write_text("x")
    assert len(shard(bad_files="skip").notes) == 3


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"path": "nowhere"}, "No such file"),
        ({"size": [0, 8]}, "is not a size"),
        ({"size": 8}, "is not a size"),
        ({"channels": 2}, "give 1 or 3"),
        ({"resize": "refuse"}, "8 × 16 pixels, not 8 × 8"),
        ({"classes": ["cat"]}, "folder 'dog', which is not a class"),
        ({"classes": ["cat", "cat", "dog"]}, "not a list of names"),
        ({"max_bytes": 200}, "more than 200 bytes"),
        ({"image_bytes": 100}, "100 are allowed"),
        ({"one_hot": 1}, "1 classes"),
    ],
)
def test_a_bad_configuration_says_what_is_wrong(
    shard: Callable[..., Any], config: dict[str, object], says: str
) -> None:
    with pytest.raises(ComponentError, match=says):
        shard(**config)


def test_a_folder_of_no_images_is_refused(tmp_path: Path, shard: Callable[..., Any]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ComponentError, match="holds no images"):
        shard(path=str(tmp_path / "empty"))
    (tmp_path / "more").symlink_to(tmp_path / "cat")
    with pytest.raises(ComponentError, match="is a link"):
        shard()
