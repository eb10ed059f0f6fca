"""Finds the class of a `TYPE_NAME`: built-in components, those of installed packages, and the user's.

A name is looked up in this order: classes registered in this process (`@register`, `--load FILE.py`), the
built-ins, the entry points of the group `bytesandbrains.components` (name = TYPE_NAME, value = the class).
Built-ins and entry points are imported when a program first names them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, overload

from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.suggestions import suggestion

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from bb_edge.roles.component import Component

__all__ = [
    "BUILT_IN",
    "Registry",
    "RegistryError",
    "UnregisteredConcreteError",
    "default_registry",
    "forgotten_register",
    "load_all",
    "register",
]

BUILT_IN: Mapping[str, str] = {
    "bb.NumPyBackend": "bb_edge.backends.numpy_backend:NumPyBackend",
    "bb.TFLiteBackend": "bb_edge.backends.tflite.backend:TFLiteBackend",
    "bb.GraphModel": "bb_edge.components.graph_model:GraphModel",
    "bb.FedAvg": "bb_edge.components.fed_avg:FedAvg",
    "bb.ArrayDataSource": "bb_edge.components.array_data_source:ArrayDataSource",
    "bb.CsvDataSource": "bb_edge.components.csv_data_source:CsvDataSource",
    "bb.CsvStreamDataSource": "bb_edge.components.csv_stream_data_source:CsvStreamDataSource",
    "bb.BoardConditions": "bb_edge.components.board_conditions:BoardConditions",
    "bb.ImageFolderDataSource": "bb_edge.components.image_folder_data_source:ImageFolderDataSource",
    "bb.KeptValue": "bb_edge.components.kept_value:KeptValue",
    "bb.OncePerRound": "bb_edge.components.once_per_round:OncePerRound",
    "bb.PresenceSelector": "bb_edge.components.presence_selector:PresenceSelector",
    "bb.Cyclon": "bb_edge.components.cyclon:Cyclon",
    "bb.GlobalRegistryServer": "bb_edge.components.global_registry:GlobalRegistryServer",
    "bb.GlobalRegistryClient": "bb_edge.components.global_registry:GlobalRegistryClient",
    "bb.ConstantView": "bb_edge.components.constant_view:ConstantView",
    "bb.FlatIndex": "bb_edge.components.flat_index:FlatIndex",
    "bb.Float16Codec": "bb_edge.components.float16_codec:Float16Codec",
    "bb.ScalarQuantizer": "bb_edge.components.scalar_quantizer:ScalarQuantizer",
}
"""TYPE_NAME → "module:Class" of the components of this runtime."""

_C = TypeVar("_C", bound="Component")


class RegistryError(BBError):
    """A class cannot be registered, or a module or entry point cannot be loaded."""


class UnregisteredConcreteError(RegistryError):
    """A program names a component type that this device does not have."""

    def __init__(self, type_name: str, where: str = "", known: Iterable[str] = ()) -> None:
        self.type_name = type_name
        near = suggestion(type_name, known)
        hint = (f"{near} Else " if near.endswith("?") else "") + (
            "install the package that has it, or give its file with --load FILE.py"
        )
        super().__init__(
            f"no component type {type_name!r} is registered", where, forgotten_register(type_name) or hint
        )


class Registry:
    """Maps TYPE_NAMEs to classes. Not thread-safe: register components before nodes run."""

    def __init__(self, entry_points: bool = True) -> None:
        self._classes: dict[str, type[Component]] = {}
        self._entry_points: Mapping[str, EntryPoint] | None = None if entry_points else {}

    def register(self, cls: type[_C]) -> type[_C]:
        """Registers a class under its TYPE_NAME; usable as a decorator.

        Raises RegistryError, at the author's line, where the name is missing or belongs to another class, the
        role is unknown, or the class lacks methods of its Contract.
        """
        where = _author_line(cls)
        if not (isinstance(cls, type) and issubclass(cls, _component())):
            raise RegistryError(
                f"{cls!r} is not a subclass of Component",
                where,
                "derive it from a Contract: Aggregator, Codec, …",
            )
        known = self._classes.get(cls.TYPE_NAME)
        same_place = known is not None and _place_of(known) == _place_of(cls)
        if known is not None and known is not cls and not same_place:
            raise RegistryError(
                f"{cls.__name__}: TYPE_NAME {cls.TYPE_NAME!r} is taken by "
                f"{known.__module__}.{known.__qualname__}",
                where,
                "choose another name",
            )
        if cls.TYPE_NAME in BUILT_IN and BUILT_IN[cls.TYPE_NAME] != f"{cls.__module__}:{cls.__qualname__}":
            raise RegistryError(
                f"{cls.__name__}: TYPE_NAME {cls.TYPE_NAME!r} belongs to a built-in component",
                where,
                f'name your class: TYPE_NAME = "package.{cls.__name__}"',
            )
        if cls.TYPE_NAME not in BUILT_IN:
            from bb_edge.roles.class_check import check_class
            from bb_edge.roles.errors import ContractError

            try:
                check_class(cls)
            except ContractError as error:
                raise RegistryError(f"{cls.__name__}: {error.what}", where, error.hint) from error
        self._classes[cls.TYPE_NAME] = cls
        return cls

    def lookup(self, type_name: str, where: str = "") -> type[Component]:
        """Returns the class of a TYPE_NAME.

        Raises UnregisteredConcreteError where there is none, RegistryError where it cannot be loaded.
        """
        registered = self._classes.get(type_name)
        if registered is not None:
            return registered
        if type_name in BUILT_IN:
            module, _, name = BUILT_IN[type_name].partition(":")
            return self._take(type_name, getattr(importlib.import_module(module), name), module)
        point = self._points().get(type_name)
        if point is None:
            raise UnregisteredConcreteError(type_name, where, self.type_names())
        try:
            loaded = point.load()
        except BBError:
            raise
        except Exception as error:
            raise RegistryError(
                f"entry point {point.value} cannot be loaded: {type(error).__name__}: {error}",
                type_name,
                "repair or reinstall its package",
            ) from error
        return self._take(type_name, loaded, point.value)

    def load_module(self, name: str) -> None:
        """Loads a file (`./mycomponents.py`) or a module (`acme.parts`) whose classes register themselves.

        A file that is already loaded, under any name, is not loaded again. Relative files and modules are
        looked for in the working directory. Raises RegistryError with the line at fault where the code fails,
        and for a module that registers neither a component nor a type.
        """
        from bb_edge.user_modules import UserModuleError, import_user_module

        try:
            module = import_user_module(name)
        except UserModuleError as error:
            raise RegistryError(error.what, error.where, error.hint) from error
        if not self._registered_by(module):
            raise RegistryError(
                "it registers neither a component nor a type",
                f"--load {name}",
                "put @register (from bb_edge.extend) above each component class",
            )

    def _registered_by(self, module: ModuleType) -> bool:
        from bb_edge.ir.types import TypeNode

        classes = {*self._classes.values(), *_default._classes.values()}
        own = (module.__name__, f"{module.__name__}.")
        if any(cls.__module__ == own[0] or cls.__module__.startswith(own[1]) for cls in classes):
            return True
        return any(
            isinstance(value, TypeNode) or (isinstance(value, type) and value in classes)
            for value in vars(module).values()
        )

    def forget(self, type_name: str) -> None:
        """Takes a registered class out, so that another may have its name.

        For notebooks and tests that define a class again. A name that is not registered is fine.
        """
        self._classes.pop(type_name, None)

    def type_names(self) -> tuple[str, ...]:
        """All names that can be looked up, sorted; does not import anything."""
        return tuple(sorted({*self._classes, *BUILT_IN, *self._points()}))

    def _take(self, type_name: str, loaded: object, where: str) -> type[Component]:
        if not (isinstance(loaded, type) and issubclass(loaded, _component())):
            raise RegistryError(
                "it is not a subclass of Component", where, "let the entry point name a class"
            )
        if type_name != loaded.TYPE_NAME:
            raise RegistryError(
                f"its TYPE_NAME is {loaded.TYPE_NAME!r}, but its entry point is named {type_name!r}",
                where,
                "give the entry point the TYPE_NAME as its name",
            )
        return self.register(loaded)

    def _points(self) -> Mapping[str, EntryPoint]:
        if self._entry_points is None:
            from importlib.metadata import (
                entry_points,
            )  # slow to import, and most programs need no entry point

            points = entry_points(group=keys.COMPONENT_ENTRY_POINTS)
            self._entry_points = {point.name: point for point in points}
        return self._entry_points


def _component() -> type[Component]:
    from bb_edge.roles.component import Component

    return Component


def forgotten_register(type_name: str) -> str:
    """Returns the remedy where a class of that TYPE_NAME is there without `@register`; "" where none is."""
    kinds: list[type[Component]] = [_component()]
    for kind in kinds:  # grows as it is walked
        if kind.__dict__.get("TYPE_NAME") == type_name:
            line = _class_line(kind)
            return f"put @register (from bb_edge.extend) above class {kind.__name__}" + (
                f" ({line})" if line else ""
            )
        kinds += kind.__subclasses__()
    return ""


def _place_of(cls: type) -> tuple[str, str]:
    """Where a class is defined: a file that is imported under two names, as with --load, defines it twice."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return os.path.realpath(file) if file else cls.__module__, cls.__qualname__


def _author_line(cls: object) -> str:
    """`file.py:12` of the code that registers the class; the name of the class if that code is ours."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    file = frame.f_code.co_filename
    if file.startswith((_PACKAGE, "<", _HOST)):
        place = _class_line(cls)
        if place:
            return place
        return f"{getattr(cls, '__module__', '')}.{getattr(cls, '__qualname__', cls)}"
    return f"{os.path.basename(file)}:{frame.f_lineno}"


def _class_line(cls: object) -> str:
    """`file.py:12` of a class that an entry point names; "" if it is not known."""
    module = sys.modules.get(getattr(cls, "__module__", ""))
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or file.startswith(_PACKAGE) or not isinstance(cls, type):
        return ""
    import inspect  # only errors need it

    try:
        return f"{os.path.basename(file)}:{inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):
        return os.path.basename(file)


_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep

_HOST = os.path.join(os.path.dirname(_PACKAGE.rstrip(os.sep)), "bb_host") + os.sep

_default = Registry()


def default_registry() -> Registry:
    """The registry that `install` uses if it is not given another one."""
    return _default


def load_all(names: Iterable[str]) -> None:
    """Loads files and modules into the default registry, in order.

    Raises RegistryError, which names the line at fault.
    """
    for name in names:
        _default.load_module(name)


@overload
def register(cls: type[_C]) -> type[_C]: ...
@overload
def register() -> Callable[[type[_C]], type[_C]]: ...
def register(cls: type[_C] | None = None) -> type[_C] | Callable[[type[_C]], type[_C]]:
    """Registers a component in the default registry; a class decorator, `@register` or `@register()`."""
    return _default.register if cls is None else _default.register(cls)
