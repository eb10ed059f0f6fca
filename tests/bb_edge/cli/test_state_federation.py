"""A state folder is of one federation: others who have the same names get nothing of what waits there."""

from __future__ import annotations

import pytest

from bb_edge.cli import main
from bb_edge.cli.endings import Exit

pytestmark = pytest.mark.broker


def test_a_folder_of_another_federation_is_refused_and_the_first_one_goes_on(
    configured, start, tmp_path, capsys
):
    path = configured(state="state", federation="farm")
    node = start("run", "--config", str(path))
    node.says("tick")
    assert node.end() == Exit.DONE
    assert (tmp_path / "state" / "federation").read_text() == "farm\n"

    for verb in (["run"], ["check"]):
        other = configured(state="state", federation="office")
        assert main([*verb, "--config", str(other)]) == (Exit.REFUSED if verb == ["run"] else 1)
        said = capsys.readouterr()
        assert "it is of federation 'farm', and this node is to join 'office'" in said.err + said.out
        assert "--state" in said.err + said.out

    node = start("run", "--config", str(configured(state="state", federation="farm")))
    node.says("tick")
    assert node.end() == Exit.DONE


def test_a_folder_that_does_not_say_is_of_the_federation_that_it_is_run_in(configured, start, tmp_path):
    path = configured(state="state", federation="farm")
    for _ in range(2):
        node = start("run", "--config", str(path))
        node.says("tick")
        assert node.end() == Exit.DONE
        (tmp_path / "state" / "federation").rename(tmp_path / "written")  # as a version before wrote it
        assert (tmp_path / "written").read_text() == "farm\n"


def test_a_look_notes_nothing(configured, start, tmp_path):
    path = configured(state="state", federation="farm")
    node = start("run", "--config", str(path))
    node.says("tick")
    assert node.end() == Exit.DONE
    (tmp_path / "state" / "federation").unlink()
    assert main(["check", "--config", str(configured(state="state", federation="office"))]) == 0
    assert not (tmp_path / "state" / "federation").exists()


@pytest.mark.parametrize("held", [b"", b"farm\xff\n", b"f" * 65, b"a/b", bytes(range(256))])
def test_a_file_that_names_no_federation_is_damaged(held, configured, tmp_path, capsys):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "federation").write_bytes(held)
    path = str(configured(state="state", federation="farm"))
    assert main(["run", "--config", path]) == Exit.REFUSED
    said = capsys.readouterr().err
    assert "its file 'federation', which says of which federation it is, is damaged" in said
    assert "remove that file alone" in said
    (tmp_path / "state" / "federation").unlink()
    assert main(["check", "--config", path]) == 0
