"""The configuration keys of component classes, with their kinds, defaults and ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

from bb_edge.ir.suggestions import suggestion
from bb_edge.roles.errors import ContractError

__all__ = ["REQUIRED", "Configurable", "Misfit", "Setting", "misfit", "settings_of"]

_INF = float("inf")
_MOST_FLOAT = 1.7976931348623157e308
_MOST_DIGITS = 30
_MOST_TOLD = 8  # keys of one slot


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()
"""The default of a setting that has none: the configuration must give it."""


class Setting(NamedTuple):
    """A key of `Component.CONFIG`, made by `integer`, `number`, `text`, `flag` or `anything`.

    Without a default the key is required on the device; with the default None it is optional, and reads as
    None. Numbers lie in [minimum, maximum]; with `above` the minimum is none of them.
    """

    kind: str
    default: object = REQUIRED
    minimum: float = -_INF
    maximum: float = _INF
    choices: tuple[str, ...] = ()
    above: bool = False

    @classmethod
    def integer(cls, default: object = REQUIRED, minimum: int = 0, maximum: int = 2**63 - 1) -> Setting:
        """Declares a whole number."""
        _range(minimum, maximum)
        return cls("integer", default, minimum, maximum)

    @classmethod
    def number(
        cls,
        default: object = REQUIRED,
        minimum: float = -_INF,
        maximum: float = _INF,
        *,
        above: float | None = None,
    ) -> Setting:
        """Declares a finite number, which reads as a float; `above` is a minimum that is not in the range."""
        if above is None:
            _range(minimum, maximum)
            return cls("number", default, minimum, maximum)
        if minimum > -_INF or above >= maximum:
            raise ContractError(
                f"no range begins at {minimum} and above {above}, up to {maximum}",
                "Setting.number",
                "give minimum or above, and a larger maximum",
            )
        return cls("number", default, above, maximum, above=True)

    @classmethod
    def text(cls, default: object = REQUIRED, choices: Iterable[str] = ()) -> Setting:
        """Declares a text, one of `choices` where there are any."""
        if isinstance(choices, str):
            raise ContractError(
                f"choices of a setting are {choices!r}, one text",
                "Setting.text",
                f'write choices=("{choices}",), or each choice as a text of its own',
            )
        return cls("text", default, choices=tuple(choices))

    @classmethod
    def flag(cls, default: object = REQUIRED) -> Setting:
        """Declares true or false."""
        return cls("flag", default)

    @classmethod
    def anything(cls, default: object = None) -> Setting:
        """Declares a value that the component itself checks, such as a list or a table."""
        return cls("anything", default)

    def wrong(self, value: object) -> str:
        """Returns what is wrong with a value; "" where nothing is."""
        if self.kind == "flag":
            return "" if isinstance(value, bool) else f"must be true or false, not {value!r:.60}"
        if self.kind == "text":
            if not isinstance(value, str):
                return f"must be a text, not {value!r:.60}"
            wrong = self.choices and value not in self.choices
            shown = ", ".join(choice or "'' (nothing)" for choice in self.choices)
            return f"must be one of {shown}, not {value!r:.60}" if wrong else ""
        if self.kind == "integer":
            if isinstance(value, bool) or not isinstance(value, int):
                return f"must be an integer, not {value!r:.60}"
            inside = self.minimum <= value <= self.maximum
            return "" if inside else f"must lie in [{self.minimum}, {self.maximum}], not {_cut(value)}"
        if self.kind == "number":
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                return f"must be a number, not {value!r:.60}"
            finite = -_MOST_FLOAT <= value <= _MOST_FLOAT  # also of whole numbers that no float holds
            out = self.above and value == self.minimum
            if self.minimum <= value <= self.maximum and finite and not out:
                return ""
            if self.maximum < _INF:
                bracket = "(" if self.above else "["
                return f"must lie in {bracket}{self.minimum}, {self.maximum}], not {_cut(value)}"
            side = "above" if self.above else "at least"
            least = f" and {side} {self.minimum}" if self.minimum > -_INF else ""
            return f"must be finite{least}, not {_cut(value)}"
        return ""

    def taken(self, value: object) -> object:
        """Returns an accepted value as the component gets it."""
        return float(value) if self.kind == "number" and isinstance(value, int) else value


def _cut(number: float) -> str:
    """The number, or its beginning and length: JSON has whole numbers of thousands of digits."""
    text = str(number)
    return text if len(text) <= _MOST_DIGITS else f"{text[:20]}… ({len(text)} digits)"


def _range(minimum: float, maximum: float) -> None:
    if minimum > maximum:
        raise ContractError(
            f"no number lies in [{minimum}, {maximum}]", "Setting", f"exchange {minimum} and {maximum}"
        )


class Configurable(Protocol):
    """A class that declares its configuration keys; every component class is one."""

    TYPE_NAME: ClassVar[str]
    CONFIG: ClassVar[Mapping[str, Setting] | None]

    @classmethod
    def wrong_settings(cls, config: Mapping[str, object], complete: bool) -> Sequence[Misfit]: ...


class Misfit(NamedTuple):
    """A key at which a configuration does not fit a class, why, and what to do.

    Of several keys `key` is empty, and `what` tells each.
    """

    key: str
    what: str
    hint: str = ""


def settings_of(kind: type[Configurable]) -> dict[str, Setting] | None:
    """Returns the keys that a class and its bases declare in `CONFIG`; None where none declares any."""
    known: dict[str, Setting] | None = None
    for base in reversed(kind.__mro__):
        own = base.__dict__.get("CONFIG")
        if own is not None:
            known = {**(known or {}), **own}
    return known


def misfit(
    kind: type[Configurable],
    config: Mapping[str, object],
    complete: bool,
    compiled: Mapping[str, object] = MappingProxyType({}),
) -> Misfit | None:
    """Returns the keys at which a configuration does not fit a class; None where it fits.

    `complete` includes required keys that are missing, as on the device. `compiled` is what holds where the
    device leaves a key out. A class that declares no keys takes every configuration.
    """
    known = settings_of(kind)
    if known is None:
        return None
    found = []
    for key, value in config.items():
        setting = known.get(key)
        if setting is None:
            found.append(Misfit(key, "unknown configuration key", _known(key, known, kind)))
        elif value is not None or setting.default is not None:
            wrong = setting.wrong(value)
            if wrong:
                own = key in compiled and value != compiled[key]
                found.append(Misfit(key, wrong, _of_artifact(compiled[key]) if own else _remedy(setting)))
    for key, setting in known.items() if complete else ():
        if setting.default is REQUIRED and key not in config:
            hint = "give it at bind_…, or with --set SLOT.KEY=VALUE"
            found.append(Misfit(key, "missing configuration key", hint))
    if not found:
        defaults = {key: setting.default for key, setting in known.items() if setting.default is not REQUIRED}
        read = {**defaults, **config}
        found += kind.wrong_settings({key: v for key, v in read.items() if v is not None}, complete)
    return _together(found)


def _together(found: list[Misfit]) -> Misfit | None:
    if len(found) <= 1:
        return found[0] if found else None
    told = [f"key {key!r:.60}: {what} ({hint})" for key, what, hint in found[:_MOST_TOLD]]
    more = [f"and {len(found) - _MOST_TOLD} more"] if len(found) > _MOST_TOLD else []
    return Misfit("", "; ".join(told + more))


def _of_artifact(value: object) -> str:
    return f"give such a value, or leave the key out: the artifact has {value!r:.60}"


def _remedy(setting: Setting) -> str:
    if setting.default is REQUIRED:
        return "give such a value"
    left_out = "optional" if setting.default is None else f"{setting.default!r} by default"
    return f"give such a value, or leave the key out: it is {left_out}"


def _known(key: str, known: Mapping[str, Setting], kind: type[Configurable]) -> str:
    if not known:
        return f"{kind.TYPE_NAME} has none"
    return suggestion(key, known, f"known keys of {kind.TYPE_NAME}: ")
