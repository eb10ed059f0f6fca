"""A role has all its parts: what authors bind and fill, and what components are checked against."""

from __future__ import annotations

import pytest

import bb_edge.extend
import bb_host
from bb_edge.ir import keys
from bb_edge.roles import class_check
from bb_host import Compiler
from bb_host.dsl import slots


@pytest.mark.parametrize("role", keys.ROLES)
def test_a_role_has_a_slot_a_binding_and_a_contract(role: str) -> None:
    name = "".join(word.title() for word in role.split("_"))
    slot = getattr(slots, f"{name}Slot", None)
    assert slot is not None and role == slot.ROLE, f"bb_host/dsl/slots.py has no {name}Slot"
    assert f"{name}Slot" in bb_host.__all__, f"bb_host does not export {name}Slot"
    assert hasattr(Compiler, f"bind_{role}"), f"bb_host/compiler/driver.py has no bind_{role}"
    contract = class_check.CONTRACTS.get(role)
    assert contract is not None, f"CONTRACTS of bb_edge/roles/class_check.py has no {role!r}"
    assert contract.__name__ in bb_edge.extend.__all__, f"bb_edge.extend does not export {contract.__name__}"
