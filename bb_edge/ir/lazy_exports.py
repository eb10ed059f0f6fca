"""Names of a module that are imported when they are first used."""

from __future__ import annotations

TYPE_CHECKING = False  # as in `bb_edge`: without `typing`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_exports(
    namespace: dict[str, object], homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns the `__getattr__` and the `__dir__` of the module whose `globals()` `namespace` is.

    `homes` maps a module to what an import statement would name:
    `{"bb_edge.ir.types": "TypeNode, by_id as find_type"}`. Each name is imported once, and kept in
    `namespace`. Any other name is an AttributeError, which suggests one where the module is not a package.

    Type checkers and editors do not read `homes`. Write the same imports below `if TYPE_CHECKING:` and this
    call below its `else:`, so that they see the names, and report a misspelt one.
    """
    found = {}
    for home, imports in homes.items():
        for part in imports.split(", "):
            own, _, name = part.partition(" as ")
            found[name or own] = (home, own)

    def __getattr__(name: str) -> object:
        home, own = found.get(name, ("", ""))
        if not home:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}{_hint(name)}")
        # What `from home import own` does, also where `own` is a submodule.
        value: object = getattr(__import__(home, fromlist=[own]), own)
        if isinstance(value, type) and getattr(value, "__module__", "") is None:
            value.__module__ = home  # protobuf does not set it, and help() needs it
        namespace[name] = value
        return value

    def _hint(name: str) -> str:
        # `from package import submodule` asks each time for an attribute first, and throws the error away.
        if "__path__" in namespace or name.startswith("__"):
            return ""
        from bb_edge.ir.suggestions import suggestion

        return f": {suggestion(name, found, 'it has ')}"

    def __dir__() -> list[str]:
        return sorted({*namespace, *found})

    return __getattr__, __dir__
