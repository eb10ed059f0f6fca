"""Settings of CSV sources that no file could mend: refused where they are bound, as on the device."""

from __future__ import annotations

import pytest

from bb_edge.components import (
    ArrayDataSource,
    CsvDataSource,
    CsvStreamDataSource,
    ImageFolderDataSource,
    ScalarQuantizer,
)
from bb_edge.extend import Codec, DataSource, Misfit, Setting
from bb_edge.roles import ComponentEnv, ComponentError
from bb_host import Compiler, DataSourceSlot, Module
from bb_host.errors import BindingError, SlotError
from tests.aids.refusals import refused

BAD = {
    "a delimiter of two characters": ({"delimiter": "; "}, "'delimiter': '; ' is not one character"),
    "no column": ({"columns": []}, "'columns': [] names none, or one twice"),
    "a column twice": ({"columns": ["a", "a"]}, "names none, or one twice"),
    "a column that is a table": ({"columns": {"a": 1}}, "is not a column"),
    "a fill that nothing fills": ({"fill": 1.0}, "fill is given, and missing is not 'fill'"),
    "fills of other columns": (
        {"missing": "fill", "fill": [1, 2], "columns": "a"},
        "2 numbers for 1 features",
    ),
    "a class twice": ({"label": "s", "classes": ["ok", "bad", "ok"]}, "a class is named twice: 'ok'"),
    "classes of two labels": ({"label": ["s", "t"], "classes": ["ok"]}, "classes need one label column"),
    "a fixed scale of nothing": ({"scale": "fixed"}, "scale is 'fixed', and no numbers are given"),
    "numbers without a scale": ({"scale_offset": 1}, "scale_offset are given, and scale is 'none'"),
    "a divisor of nothing": ({"scale": "fixed", "scale_divisor": [1, 0.0]}, "a divisor is 0"),
    "offsets of other columns": (
        {"columns": ["a", "b"], "scale": "fixed", "scale_offset": [1, 2, 3]},
        "'scale_offset': 3 numbers for 2 features",
    ),
    "the label as a feature": ({"columns": ["x", "y"], "label": "y"}, "'y' is the label, and one of"),
    "a label among them by index": ({"columns": [0, 1], "label": [1]}, "1 is the label, and one of"),
    "something that is not a time": ({"times": "t", "times_from": "May"}, "'May' is not a time"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("kind", [CsvDataSource, CsvStreamDataSource])
def test_host_and_device_refuse_the_same_settings_in_the_same_words(case, kind):
    config, words = BAD[case]
    with refused(BindingError, words):
        Compiler().bind_data_source("rows", kind, config)  # <-
    with pytest.raises(ComponentError) as caught:
        kind.construct(ComponentEnv("rows", "Client", {"path": "rows.csv", **config}))
    assert words in str(caught.value), caught.value


def test_a_slot_refuses_them_at_its_line():
    class Rows(Module):
        rows = DataSourceSlot("rows", CsvDataSource, {"columns": []})  # <-

        def body(self, g):
            self.rows.next_batch(g)

    with refused(SlotError, "slot 'rows'", "names none"):
        Rows().record()


def test_a_scale_of_arrays_is_held_against_its_numbers_too():
    with refused(BindingError, "bb.ArrayDataSource, key 'scale'", "where each device has its own"):
        Compiler().bind_data_source("data", ArrayDataSource, {"scale": "fixed"})  # <-


@pytest.mark.parametrize(
    "config",
    [
        {"classes": ["ok", "bad"]},  # a device names its label column
        {"times_from": "2026-01-01"},  # and its times
        {"columns": ["t", "x"], "label": "t", "times": "t", "times_from": 0},  # a time is both, by intent
        {"missing": "fill", "fill": [1, 2]},  # the file says how many columns there are
        {"scale": "fixed", "scale_offset": [1, 2]},
        {"columns": "x", "scale": "fixed", "scale_divisor": 2},
    ],
)
def test_what_a_device_or_its_file_may_complete_is_taken(config):
    Compiler().bind_data_source("rows", CsvDataSource, config)


@pytest.mark.parametrize(
    ("role", "kind", "config", "words"),
    [
        ("codec", ScalarQuantizer, {"low": 1.0, "high": 1.0}, "'high': low is 1.0, high is 1.0"),
        ("data_source", ImageFolderDataSource, {"size": [0, 8]}, "'size': [0, 8] is not a size"),
        ("data_source", ImageFolderDataSource, {"channels": 2}, "'channels': 2 channels"),
        ("data_source", ImageFolderDataSource, {"classes": ["a", "a"]}, "'classes': ['a', 'a'] is no"),
        ("data_source", ImageFolderDataSource, {"scale": "fixed"}, "'scale': scale is 'fixed'"),
        ("data_source", CsvStreamDataSource, {"keep": "reservoir", "order": "latest"}, "keep is 'res"),
    ],
)
def test_settings_of_others_are_refused_where_they_are_bound(role, kind, config, words):
    with refused(BindingError, words):
        getattr(Compiler(), f"bind_{role}")("it", kind, config)  # <-


def test_a_fault_of_an_own_check_of_settings_names_it():
    class Faulty(Codec):
        TYPE_NAME = "acme.Faulty"
        CONFIG = {"level": Setting.integer()}  # noqa: RUF012

        @classmethod
        def construct(cls, env):
            return cls()

        @classmethod
        def wrong_settings(cls, config, complete):
            return [] if config["level"] > 1 else [Misfit("level", "is low")]

        def compress(self, ctx, t):
            return t

        def decompress(self, ctx, code):
            return code

    with refused(BindingError, "acme.Faulty.wrong_settings raises KeyError: 'level'", "may be missing"):
        Compiler().bind_codec("codec", Faulty)  # <-


def test_an_own_class_refuses_what_hangs_on_two_keys():
    class Ranged(DataSource):
        TYPE_NAME = "acme.Ranged"
        CONFIG = {"low": Setting.number(0.0), "high": Setting.number(1.0)}  # noqa: RUF012

        @classmethod
        def construct(cls, env):
            env.settings(cls)
            return cls()

        @classmethod
        def wrong_settings(cls, config, complete):
            if config["low"] < config["high"]:
                return []
            return [Misfit("low", f"is not below high, {config['high']}", "exchange them")]

        def next_batch(self, ctx): ...

        def num_samples(self, ctx): ...

        def reset(self, ctx, trigger): ...

        def on_data_loaded(self, ctx): ...

    with refused(BindingError, "acme.Ranged, key 'low': is not below high, 1.0", "exchange them"):
        Compiler().bind_data_source("data", Ranged, {"low": 2})  # <-
    with pytest.raises(ComponentError, match=r"key 'low': is not below high, 0.5"):
        Ranged.construct(ComponentEnv("data", "Client", {"low": 0.5, "high": 0.5}))
    Ranged.construct(ComponentEnv("data", "Client", {"low": -1}))
