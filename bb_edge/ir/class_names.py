"""What classes of peers may be called: a class is one level of a topic, and stands in comma-joined lists."""

from __future__ import annotations

import re

CLASS_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Fits topics, their patterns in a broker's access rules, and names of files."""
ENVELOPE_LEVELS = ("from", "chunk")
"""The topics `bb/<federation>/<to>/<level>/<from>` of envelopes, and of parts of them. No class is called so:
everybody may write there in the own name, and `presence/from/<peer>` would be such a topic."""
CLASS_NAME_RULE = "1 to 64 letters, digits, '_' and '-', not 'from' or 'chunk': it is a level of topics"
SELF_CLASS = "self"
"""The only class of a program that names none."""
EVERY_CLASS = "*"
"""In a passport: the target deals with peers of classes that its program does not name."""

_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def is_class_name(text: object) -> bool:
    """Whether a class of peers may be called so."""
    return isinstance(text, str) and CLASS_NAME.fullmatch(text) is not None and text not in ENVELOPE_LEVELS


def class_of_module(module: str) -> str:
    """The class of the only target of a program that names no class: its module's name.

    Characters that a class cannot have become `_`, and a name that it cannot have ends in one.
    """
    name = _OTHER.sub("_", module)[:64] or SELF_CLASS
    return f"{name}_" if name in ENVELOPE_LEVELS else name
