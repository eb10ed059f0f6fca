"""What classes of peers may be called: a class is one level of a topic, and stands in comma-joined lists."""

from __future__ import annotations

import re

CLASS_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Fits topics, their patterns in a broker's access rules, and names of files."""
CLASS_NAME_RULE = "1 to 64 letters, digits, '_' and '-': it is a level of the topics on the broker"
SELF_CLASS = "self"
"""The only class of a program that names none."""
EVERY_CLASS = "*"
"""In a passport: the target deals with peers of classes that its program does not name."""

_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def is_class_name(text: object) -> bool:
    """Whether a class of peers may be called so."""
    return isinstance(text, str) and CLASS_NAME.fullmatch(text) is not None


def class_of_module(module: str) -> str:
    """The class of the only target of a program that names no class: its module's name.

    Characters that a class cannot have become `_`.
    """
    return _OTHER.sub("_", module)[:64] or SELF_CLASS
