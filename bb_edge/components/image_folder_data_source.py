"""`bb.ImageFolderDataSource`: batches of images that lie in a folder per class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bb_edge.components.image_files import CONVERT, SUFFIXES, ImageError, read_image, resized
from bb_edge.components.stored_samples import BATCHES, StoredSamples
from bb_edge.input_files import FileRefused, read_regular
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.errors import ComponentError
from bb_edge.roles.settings import Misfit, Setting

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["ImageFolderDataSource"]

_TEXT_PIXEL = 4
"""Bytes of a pixel's value in the largest format that is read, PPM as text."""
_INTO_A_FOLDER = "move it into one of them, or out of the folder"
_GRAY = np.array([0.299, 0.587, 0.114], np.float32)
"""What red, green and blue count in a gray (ITU-R BT.601)."""


class ImageFolderDataSource(StoredSamples):
    """Yields batches of images, f32, and their classes, i64: a folder per class, images in it.

    PNG (8 bits per channel: gray, RGB, RGBA, palette; not interlaced), PGM, PPM, BMP and .npy (u8) are read;
    JPEG is refused with a remedy. In memory an image takes a byte per value. Values are 0 to 1, or scaled
    from 0 to 255, per channel. How batches are formed is as for every `StoredSamples`. Besides:

    - `path`: the folder of the folders. Their names in order are the classes 0, 1, …; `classes`, a list of
      names, fixes the numbers where a device has not all of them: devices that learn together need that.
    - `size`: [height, width]; without it that of the first image. `resize`: how others get there: `area`, the
      mean of what lies under a new pixel (default); `nearest`; `refuse`.
    - `channels`: 3 (default), or 1: a gray of red, green and blue. Alpha is left out.
    - `layout`: `nchw`, [batch, channels, height, width] (default), or `nhwc`.
    - `bad_files`: what a file that is not such an image does, one beside the folders, and an empty folder
      with no `classes`: `refuse` (default), or `skip`, and it is said at the start how many. Names that begin
      with a dot are left out.
    - `max_bytes`: the most bytes that all images may take in memory (64 MiB); `image_bytes`: those of one as
      it is unpacked (16 MiB).
    """

    TYPE_NAME: ClassVar[str] = "bb.ImageFolderDataSource"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        "path": Setting.text(),
        "classes": Setting.anything(),
        "size": Setting.anything(),
        "resize": Setting.text("area", ("area", "nearest", "refuse")),
        "channels": Setting.integer(3, 1, 3),
        "layout": Setting.text("nchw", ("nchw", "nhwc")),
        "bad_files": Setting.text("refuse", ("refuse", "skip")),
        "max_bytes": Setting.integer(1 << 26, 1),
        "image_bytes": Setting.integer(1 << 24, 1),
        **BATCHES,
    }

    def __init__(
        self, x: Array, y: Array | None = None, *, channels_first: bool = True, **batching: Any
    ) -> None:
        """`x` is u8 [images, height, width, channels]."""
        super().__init__(x, y, **batching)
        self._channels_first = channels_first

    @classmethod
    def construct(cls, env: ComponentEnv) -> ImageFolderDataSource:
        read = env.settings(cls)
        batching = cls.batching(env, read)
        folder = _Folder(env, read)
        x, y = folder.images()
        source = cls(x, y, channels_first=read["layout"] == "nchw", **batching)
        source.notes = [*source.notes, *folder.notes(batching["where"])]
        return source

    @classmethod
    def port_types(cls, config: Mapping[str, object], tensors: Mapping[str, Array]) -> Mapping[str, str]:
        """Returns the shape of a batch, as far as the configuration fixes it."""
        size, channels, classes = config.get("size"), config.get("channels", 3), config.get("one_hot")
        sides = size if isinstance(size, list | tuple) and len(size) == 2 else ("?", "?")
        shape = [channels, *sides] if config.get("layout", "nchw") == "nchw" else [*sides, channels]
        one_hot = isinstance(classes, int) and classes > 0
        return {
            "NextBatch.batch": f"F32[?,{','.join(map(str, shape))}]",
            "NextBatch.labels": f"F32[?,{classes}]" if one_hot else "I64[?]",
        }

    @classmethod
    def wrong_settings(cls, config: Mapping[str, object], complete: bool) -> Sequence[Misfit]:
        """Returns keys of images and of their scaling that cannot be."""
        wrong = [*super().wrong_settings(config, complete)]
        if config["channels"] == 2:
            wrong.append(Misfit("channels", "2 channels", "give 1 or 3"))
        size, classes = config.get("size"), config.get("classes")
        if size is not None and not _is_size(size):
            wrong.append(Misfit("size", f"{size!r:.60} is not a size", "give [height, width] in pixels"))
        if classes is not None and not _are_names(classes):
            wrong.append(Misfit("classes", f"{classes!r:.60} is not a list of names", 'give ["cat", "dog"]'))
        return wrong

    def _scaled(self, batch: Array) -> Array:
        values = batch / np.float32(255) if self._scaling is None else self._scaling.apply(batch)
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2)) if self._channels_first else values


_LISTED = 5
"""How many classes a note names."""


class _Folder:
    """Reads the images of one configuration."""

    def __init__(self, env: ComponentEnv, read: Mapping[str, Any]) -> None:
        self._env, self._read = env, read
        self._size: tuple[int, int] | None = None if read["size"] is None else (*read["size"],)
        self._channels: int = read["channels"]
        self._skipped, self._first = 0, ""
        self._empty: list[str] = []
        self._named: list[str] = []

    def images(self) -> tuple[Array, Array]:
        """Returns all images, u8 [n, height, width, channels], and their classes. ComponentError."""
        images: list[Array] = []
        labels: list[int] = []
        taken, most = 0, self._read["max_bytes"]
        for number, folder in self._classes():
            for path in self._files(folder):
                try:
                    image = self._image(path)
                except ImageError as error:
                    self._leave_out(path, error)
                    continue
                taken += image.nbytes
                if taken > most:
                    hint = "raise max_bytes, or make size smaller"
                    raise self._env.error(f"the images take more than {most} bytes", "max_bytes", hint)
                images.append(image)
                labels.append(number)
            if not labels or labels[-1] != number:
                self._empty.append(folder)
        if not images:
            why = f", {self._skipped} files are skipped" if self._skipped else ""
            hint = "put the images into a folder per class"
            raise self._env.error(f"{self._read['path']} holds no images{why}", "path", hint)
        if self._empty and self._read["bad_files"] == "refuse" and self._read["classes"] is None:
            raise ComponentError(
                "it holds no images, and is a class by its name",
                f"slot {self._env.slot!r}, {self._empty[0]}",
                "put images there, remove it, or name all classes in `classes`; or set bad_files = 'skip'",
            )
        return np.stack(images), np.array(labels, np.int64)

    def notes(self, where: str) -> list[str]:
        """What to tell the user: the classes' numbers, skipped files, and classes without images."""
        found = []
        if self._read["classes"] is None:
            listed = ", ".join(f"{n} {name}" for n, name in enumerate(self._named[:_LISTED]))
            found.append(
                f"{where}: classes are numbered by the folders that are here: {listed}"
                f"{', …' if len(self._named) > _LISTED else ''}; a device that lacks one of them numbers"
                " otherwise: name all in classes"
            )
        if self._skipped:
            found.append(f"{where}: {self._skipped} files are skipped; the first: {self._first}")
        if self._empty:
            found.append(f"{where}: {len(self._empty)} classes have no images; the first: {self._empty[0]}")
        return found

    def _leave_out(self, path: str, error: ImageError) -> None:
        """Counts a file that is not an image; ComponentError where such files are refused."""
        if self._read["bad_files"] == "refuse":
            hint = f"{error.hint}; or set bad_files = 'skip'"
            raise ComponentError(error.what, f"slot {self._env.slot!r}, {path}", hint) from error
        self._skipped += 1
        self._first = self._first or f"{path}: {error.what}"

    def _classes(self) -> Iterator[tuple[int, str]]:
        """The number and the path of each class's folder."""
        path: str = self._read["path"]
        entries = self._entries(path)
        folders = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
        links = [e.path for e in entries if e.is_symlink() and e.is_dir()]
        if links:
            raise self._env.error(f"{links[0]} is a link", "path", "name its folder, or copy it")
        for entry in entries:
            if not entry.is_dir():
                stray = ImageError("it lies beside the folders of the classes", entry.path, _INTO_A_FOLDER)
                self._leave_out(entry.path, stray)
        given = self._read["classes"]
        names = folders if given is None else given
        strange = sorted(set(folders) - set(names))
        if strange:
            raise self._env.error(
                f"{path} has a folder {strange[0]!r}, which is not a class", "classes", "name it"
            )
        self._named = list(names)
        for number, name in enumerate(names):
            if name in folders:
                yield number, os.path.join(path, name)

    def _files(self, folder: str) -> Iterator[str]:
        for entry in self._entries(folder):
            yield entry.path

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or error
            raise self._env.error(f"{folder} cannot be read: {what}", "path", "name a folder") from error

    def _image(self, path: str) -> Array:
        """One image in its final size and channels. ImageError."""
        if path.lower().endswith((".jpg", ".jpeg")):
            raise ImageError("it is a JPEG, which is not read here", path, CONVERT)
        if not path.lower().endswith(SUFFIXES):
            raise ImageError("its name is not that of an image", path, f"names end in {', '.join(SUFFIXES)}")
        most = self._read["image_bytes"]
        try:
            data = read_regular(path, _TEXT_PIXEL * most + (1 << 16), "is it an image?", follow=False)
        except FileRefused as error:
            raise ImageError(error.what, path, error.hint) from error
        except OSError as error:
            link = os.path.islink(path)
            what = "it is a link" if link else f"it cannot be read: {error.strerror or error}"
            raise ImageError(what, path, "copy the file itself") from error
        image = self._coloured(read_image(data, path, most))
        if self._size is None:
            self._size = image.shape[0], image.shape[1]
        if image.shape[:2] != self._size and self._read["resize"] == "refuse":
            (high, wide), (new_high, new_wide) = image.shape[:2], self._size
            what = f"it has {wide} × {high} pixels, not {new_wide} × {new_high}"
            raise ImageError(what, path, "set resize to 'area' or 'nearest'")
        return resized(image, *self._size, self._read["resize"])

    def _coloured(self, image: Array) -> Array:
        image = image[:, :, :3]
        if image.shape[2] == self._channels:
            return image
        if self._channels == 3:
            return np.repeat(image, 3, axis=2)
        gray: Array = np.rint(image.astype(np.float32) @ _GRAY).astype(np.uint8)[:, :, None]
        return gray


def _is_size(given: object) -> bool:
    sides = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    return len(sides) == 2 and not any(Setting.integer(1, 1, 1 << 14).wrong(side) for side in sides)


def _are_names(given: object) -> bool:
    if isinstance(given, str) or not isinstance(given, Sequence):
        return False
    return all(isinstance(name, str) for name in given) and len(set(given)) == len(given)
