"""A wrong command line is refused in two lines, by either command and by each of its verbs."""

from __future__ import annotations

import pytest

from bb_edge import cli as device
from bb_host import cli as host


@pytest.mark.parametrize(
    ("main", "words", "what"),
    [
        (device.main, ["run", "--nope"], "bb-edge run: error: unrecognized arguments: --nope"),
        (
            host.main,
            ["simulate", "f.py", "-W", "2"],
            "bb-host simulate: error: unrecognized arguments: -W 2; did you mean --workers?",
        ),
        (
            host.main,
            ["simulate", "f.py", "--wrokers=2"],
            "bb-host simulate: error: unrecognized arguments: --wrokers=2; did you mean --workers?",
        ),
        (
            host.main,
            ["simulate", "f.py", "--client", "2"],
            "bb-host simulate: error: unrecognized arguments: --client 2; did you mean --clients?",
        ),
        (device.main, ["check"], "bb-edge check: error: name an artifact"),
        (host.main, ["compile"], "bb-host compile: error: the following arguments are required: file"),
        (host.main, ["nope"], "bb-host: error: argument VERB: invalid choice: 'nope'"),
    ],
)
def test_what_is_wrong_comes_first(main, words, what, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(what), first
    assert second == f"(`{what.partition(':')[0]} --help` lists what it takes)"
