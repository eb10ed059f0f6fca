"""Builds protobuf message classes from a serialized descriptor, on every protobuf from 3.12 to today's."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper


def _name(serialized: bytes) -> str:
    """Returns a FileDescriptorProto's name, its first field; parsing all of it would load descriptor_pb2."""
    assert serialized[0] == 0x0A
    assert serialized[1] < 0x80
    return serialized[2 : 2 + serialized[1]].decode()


def load_file(serialized: bytes) -> tuple[Any, dict[str, Any]]:
    """Registers one .proto file in the default pool; returns its FileDescriptor and its names.

    The names are those that a generated module would have at its top level: message classes, enum wrappers
    and the enums' values.
    """
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(serialized)
    file = pool.FindFileByName(_name(serialized))
    get_class = getattr(message_factory, "GetMessageClass", None)
    if get_class is None:  # protobuf before 4.22
        factory: Any = message_factory.MessageFactory(pool)
        get_class = factory.GetPrototype
    messages = file.message_types_by_name
    names: dict[str, Any] = {name: get_class(message) for name, message in messages.items()}
    # The runtime makes the class of a nested message anew at each use after the collector, unless it is held.
    names["_NESTED"] = [get_class(inner) for message in messages.values() for inner in message.nested_types]
    for name, enum in file.enum_types_by_name.items():
        wrapper = enum_type_wrapper.EnumTypeWrapper(enum)
        names[name] = wrapper
        names.update({value.name: value.number for value in enum.values})
    return file, names
