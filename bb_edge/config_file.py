"""Reads the configuration of a device, `bb-edge run --config FILE`, from a JSON or TOML file.

Every key is checked. An unknown key is refused with the known one that it resembles, a value of the wrong
type with the type that is expected. Flags override the file. docs/reference/configuration.md lists all keys.

Paths (artifact, state, adopt, save_model, trace, the broker's files, the files of `load`) are relative to
the folder of the file.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from bb_edge.engine.config import ConfigError, NodeConfig
from bb_edge.input_files import FileRefused, read_regular
from bb_edge.ir.errors import BBError
from bb_edge.ir.plain_values import NestedTooDeep, shallow
from bb_edge.ir.suggestions import suggestion
from bb_edge.roles.settings import Setting
from bb_edge.run_config import (
    MAX_LOGIN,
    ConfigFileError,
    RunConfig,
    checked_deliver_within,
    checked_every,
    checked_give_up,
    checked_interval,
    checked_seed,
    checked_snapshot_rounds,
    misfit_of_peer,
)
from bb_edge.state import StateError, StoreLimits
from bb_edge.transport.broker import MqttOptionError, MqttOptions
from bb_edge.user_modules import is_file_name
from bb_edge.wire.caps import EnvelopeCaps

MAX_BYTES = 1024 * 1024
"""Bytes of the largest configuration: they are written by hand, so a larger file is a wrong file."""

VERSIONS = ("auto", "5", "3.1.1")
BUDGETS = ("edge", "host")
LEVELS = ("debug", "info", "warning", "error")


def load_config(path: Path) -> RunConfig:
    """Reads a `.json` or `.toml` file. Raises ConfigFileError, which says what is wrong with it."""
    try:
        data = read_regular(path, MAX_BYTES)
    except FileRefused as error:
        raise ConfigFileError(error.what, error.where, error.hint) from error
    except OSError as error:
        raise ConfigFileError(f"it cannot be read: {error.strerror}", str(path)) from error
    parse = _parsers().get(path.suffix.lower())
    if parse is None:
        raise ConfigFileError(f"it ends in {path.suffix!r}", str(path), "write .json or .toml")
    try:
        text = data.decode("utf-8-sig")  # editors on Windows begin a file with a mark
        parsed = shallow(parse(text, path))
    except RecursionError as error:
        raise ConfigFileError(
            f"it does not parse: {NestedTooDeep()}", str(path), "write it flatter"
        ) from error
    except ValueError as error:
        raise ConfigFileError(f"it does not parse: {error}", str(path)) from error
    return _Reader(path).config(parsed)


def _parsers() -> dict[str, Callable[[str, Path], object]]:
    return {".json": lambda text, _: json.loads(text, object_pairs_hook=_no_doubles), ".toml": _toml}


def _no_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"key {', '.join(map(repr, twice))} is written twice")
    return table


def _toml(text: str, path: Path) -> object:
    for name in ("tomllib", "tomli"):  # Python 3.10 has no tomllib
        try:
            return importlib.import_module(name).loads(text)
        except ImportError:
            continue
    raise ConfigFileError(
        "Python 3.10 reads TOML only with the package tomli",
        str(path),
        "pip install 'bytesandbrains-edge[toml]', or write the file as JSON",
    )


class _Reader:
    """Checks a parsed file, key by key. Unknown keys of all tables are named together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unknown: list[tuple[str, str]] = []  # with what each resembles

    def _fail(self, key: str, what: str, hint: str = "") -> ConfigFileError:
        return ConfigFileError(f"{key}: {what}" if key else what, str(self._path), hint)

    def _table(self, value: object, key: str, known: Mapping[str, object] | None) -> dict[str, Any]:
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise self._fail(key, "expected a table")
        if known is None:
            return value
        for name in value:
            if name not in known:
                full = f"{key}.{name:.60}" if key else f"{name:.60}"
                self._unknown.append((full, _elsewhere(name, key) or suggestion(name, known)))
        return {name: item for name, item in value.items() if name in known}

    def _refuse_unknown(self) -> None:
        if len(self._unknown) == 1:
            ((name, hint),) = self._unknown
            raise self._fail(name, "unknown key", hint)
        if self._unknown:
            told = (
                f"{name}{'' if hint.startswith('known: ') else f' ({hint})'}" for name, hint in self._unknown
            )
            raise self._fail("", f"unknown keys: {', '.join(told)}")

    def _value(self, table: Mapping[str, Any], key: str, name: str, kind: type, say: str) -> Any:
        """A value of exactly this type; None if it is absent. `say` names the type in errors."""
        if name not in table:
            return None
        value = table[name]
        if type(value) is not kind:
            full = f"{key}.{name}" if key else name
            raise self._fail(full, f"expected {say}, got {value!r:.60}")
        if isinstance(value, int) and abs(value) >> 63 and name != "seed":
            full = f"{key}.{name}" if key else name
            raise self._fail(full, f"expected {say} below 2**63, got {value!r:.20}…")
        return value

    def _text(
        self, table: Mapping[str, Any], key: str, name: str, choices: tuple[str, ...] = ()
    ) -> str | None:
        value: str | None = self._value(table, key, name, str, "a text")
        if value is not None and choices and value not in choices:
            raise self._fail(
                f"{key}.{name}" if key else name, f"unknown value {value!r}", f"one of {', '.join(choices)}"
            )
        return value

    def _name(self, table: Mapping[str, Any], name: str) -> str | None:
        text = self._text(table, "", name)
        misfit = None if text is None else misfit_of_peer(text)
        if misfit is not None:
            raise self._fail(name, *misfit)
        return text

    def _address(self, table: Mapping[str, Any], name: str) -> str | None:
        value = table.get(name)
        if type(value) is int:
            raise self._fail(name, f"expected host and port, got {value}", f'write "127.0.0.1:{value}"')
        return self._text(table, "", name)

    def _flag(self, table: Mapping[str, Any], key: str, name: str) -> bool:
        return bool(self._value(table, key, name, bool, "true or false"))

    def _number(self, table: Mapping[str, Any], name: str, above: float = -math.inf) -> float | None:
        value = table.get(name)
        if value is None:
            return None
        wrong = Setting.number(above=above).wrong(value)
        if wrong:
            raise self._fail(name, f"it {wrong}")
        return float(value)

    def _file(self, table: Mapping[str, Any], key: str, name: str) -> Path | None:
        text = self._text(table, key, name)
        if text == "" or "\0" in (text or ""):
            raise self._fail(
                f"{key}.{name}" if key else name,
                f"{text!r} is not the name of a file",
                "name one, or leave the key out",
            )
        return None if text is None else self._path.parent / text

    def _texts(self, table: Mapping[str, Any], name: str) -> tuple[str, ...]:
        one = table.get(name)
        if isinstance(one, str):
            written = f'"{name}": {json.dumps([one], ensure_ascii=False)}'
            raise self._fail(name, f"expected a list of texts, got {one!r:.60}", f"write {written:.80}")
        value = self._value(table, "", name, list, "a list of texts") or []
        if not all(isinstance(item, str) for item in value):
            raise self._fail(name, "expected a list of texts")
        return tuple(value)

    def _module(self, name: str) -> str:
        """Makes the name of a file absolute, from the folder of the configuration; keeps that of a module."""
        return str((self._path.parent / name).absolute()) if is_file_name(name) else name

    def _numbers(self, value: object, key: str, known: tuple[str, ...], extra: str = "") -> dict[str, Any]:
        table = self._table(value, key, dict.fromkeys((*known, extra) if extra else known))
        for name, number in table.items():
            if name == extra:
                continue
            if not isinstance(number, int) or isinstance(number, bool):
                raise self._fail(f"{key}.{name}", f"expected a whole number, got {number!r:.60}")
            if abs(number) >> 63:
                raise self._fail(f"{key}.{name}", f"expected less than 2**63, got {number!r:.20}…")
        return table

    def config(self, parsed: object) -> RunConfig:
        """The settings of a parsed file. Raises ConfigFileError."""
        top = self._table(parsed, "", _TOP)
        settings: dict[str, Any] = {
            "artifact": self._file(top, "", "artifact"),
            "targets": self._texts(top, "targets"),
            "peer": self._name(top, "peer"),
            "state": self._file(top, "", "state"),
            "adopt": self._file(top, "", "adopt"),
            "adopt_without_outbox": self._flag(top, "", "adopt_without_outbox"),
            "snapshot_interval_s": self._value(
                top, "", "snapshot_interval_s", int, "a whole number of seconds"
            ),
            "snapshot_rounds": self._value(top, "", "snapshot_rounds", int, "a whole number of rounds"),
            "disk": self._numbers(top.get("disk", {}), "disk", DISK),
            "save_model": self._file(top, "", "save_model"),
            "save_every": self._value(top, "", "save_every", int, "a whole number of rounds"),
            "trace": self._file(top, "", "trace"),
            "load": tuple(self._module(name) for name in self._texts(top, "load")),
            "seed": self._value(top, "", "seed", int, "a whole number"),
            "train_when": self._texts(top, "train_when"),
            "cool_celsius": self._number(top, "cool_celsius"),
            "idle_load": self._number(top, "idle_load", above=0.0),
            "metrics": self._address(top, "metrics"),
            "until_done": self._flag(top, "", "until_done"),
            "give_up_after": self._value(top, "", "give_up_after", int, "a number of rounds, 0: never"),
            "deliver_within_s": self._value(top, "", "deliver_within_s", int, "a whole number of seconds"),
            "summary": self._flag(top, "", "summary"),
            "federation": self._text(top, "", "federation"),
            "budget": self._text(top, "", "budget", BUDGETS),
        }
        settings.update(self._broker(top.get("broker", {})))
        log = self._table(top.get("log", {}), "log", dict.fromkeys(LOG))
        settings["log_level"] = self._text(log, "log", "level", LEVELS)
        settings["log_json"] = self._flag(log, "log", "json")
        components = self._table(top.get("components", {}), "components", None)
        settings["components"] = {
            slot: self._table(values, f"components.{slot}", None) for slot, values in components.items()
        }
        if top.get("bootstrap") is False:
            settings["run_bootstraps"] = False
        else:
            settings["bootstrap"] = self._bootstrap(top.get("bootstrap", {}))
        limits = dict(self._numbers(top.get("limits", {}), "limits", LIMITS, "caps"))
        settings["caps"] = self._numbers(limits.pop("caps", {}), "limits.caps", CAPS)
        settings["limits"] = limits
        self._refuse_unknown()
        given = {name: value for name, value in settings.items() if value is not None}
        config = RunConfig(**given, file=str(self._path))
        try:
            config.transport_options(config.node_config())
            config.store_limits()
            checked_interval(config.snapshot_interval_s)
            checked_snapshot_rounds(config.snapshot_rounds)
            checked_every(config.save_every)
            checked_give_up(config.give_up_after)
            checked_deliver_within(config.deliver_within_s)
            checked_seed(config.seed)
        except StateError as error:
            raise self._fail("disk", error.what, error.hint) from error
        except ConfigError as error:
            raise self._fail("limits", error.what, error.hint) from error
        except MqttOptionError as error:
            raise self._fail("broker", error.what, error.hint) from error
        except BBError as error:
            raise self._fail("", str(error)) from error
        return config

    def _bootstrap(self, table: object) -> dict[str, dict[str, object]]:
        """Inputs by target and name; a text is the path of a file, relative to the configuration."""
        values: dict[str, dict[str, object]] = {}
        for target, inputs in self._table(table, "bootstrap", None).items():
            for name, value in self._table(inputs, f"bootstrap.{target}", None).items():
                if not isinstance(value, bool | int | float | list | str):
                    raise self._fail(
                        f"bootstrap.{target}.{name}",
                        f"expected a number, a list or a file, got {value!r:.60}",
                    )
                path = self._path.parent / value if isinstance(value, str) else value
                values.setdefault(target, {})[name] = path
        return values

    def _broker(self, value: object) -> dict[str, Any]:
        if isinstance(value, str):
            return {"broker": value}
        table = self._table(value, "broker", dict.fromkeys(BROKER))
        options = {name: table[name] for name in OPTIONS if name in table}
        self._numbers(options, "broker", OPTIONS)
        settings: dict[str, Any] = {
            "broker": self._text(table, "broker", "url"),
            "username": self._text(table, "broker", "username"),
            "password": self._text(table, "broker", "password"),
            "mqtt_version": self._text(table, "broker", "mqtt_version", VERSIONS),
            "mqtt_options": options,
        }
        for name in ("ca", "cert", "key"):
            path = self._file(table, "broker", name)
            settings[name] = None if path is None else str(path)
        secret = self._file(table, "broker", "password_file")
        if secret is not None:
            if settings["password"] is not None:
                what = "password and password_file are both given"
                raise self._fail("broker", what, "write one of them")
            try:
                settings["password"] = read_regular(secret, MAX_LOGIN).decode().rstrip("\r\n")
            except FileRefused as error:
                raise self._fail("broker.password_file", f"{secret}: {error.what}", error.hint) from error
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or error
                raise self._fail("broker.password_file", f"{secret} cannot be read: {why}") from error
        return settings


LIMITS = tuple(spec.name for spec in fields(NodeConfig) if spec.name not in ("caps", "trace"))
CAPS = tuple(spec.name for spec in fields(EnvelopeCaps) if spec.name != "site_fill_bytes")
DISK = tuple(spec.name for spec in fields(StoreLimits))
OPTIONS = tuple(spec.name for spec in fields(MqttOptions))
BROKER = ("url", "ca", "cert", "key", "username", "password", "password_file", "mqtt_version", *OPTIONS)
LOG = ("level", "json")
_TOP = dict.fromkeys(
    (
        "artifact",
        "targets",
        "peer",
        "federation",
        "broker",
        "components",
        "bootstrap",
        "budget",
        "limits",
        "state",
        "adopt",
        "adopt_without_outbox",
        "snapshot_interval_s",
        "snapshot_rounds",
        "disk",
        "save_model",
        "save_every",
        "seed",
        "load",
        "train_when",
        "cool_celsius",
        "idle_load",
        "until_done",
        "give_up_after",
        "deliver_within_s",
        "summary",
        "log",
        "metrics",
        "trace",
    )
)
_TABLES: Mapping[str, Collection[str]] = {
    "": _TOP,
    "broker": BROKER,
    "log": LOG,
    "disk": DISK,
    "limits": LIMITS,
    "limits.caps": CAPS,
}


def _elsewhere(name: str, table: str) -> str:
    """Where a key belongs that another table has; empty where none has it."""
    places = [place for place, names in _TABLES.items() if name in names and place != table]
    if not places:
        return ""
    return "it belongs " + " or ".join(f"in [{place}]" if place else "before all tables" for place in places)
