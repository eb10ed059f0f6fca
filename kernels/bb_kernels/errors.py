"""The errors that kernels raise; whoever calls kernels maps them to its own."""

from __future__ import annotations


class KernelError(Exception):
    """Base of everything this package raises on purpose."""


class UnsupportedOpError(KernelError):
    """The operator, or the operator at this opset version, is not implemented here."""

    def __init__(self, op_type: str, version: int, domain: str = "", hint: str = "") -> None:
        """Keep operator, version and domain; ``hint`` says what is implemented instead."""
        self.op_type = op_type
        self.version = version
        self.domain = domain
        name = f"{domain}.{op_type}" if domain else op_type
        tail = f"; {hint}" if hint else ""
        super().__init__(f"no kernel for operator {name} at opset {version}{tail}")


class UnsupportedDtypeError(KernelError):
    """A tensor has an element type that the operator's kernel does not take."""


class KernelShapeError(KernelError):
    """The inputs (number, rank, dimensions or index values) do not fit the operator."""


class KernelMemoryError(KernelError):
    """A result whose shape depends on data needs more memory than the caller allows; nothing is allocated."""

    def __init__(self, op_type: str, requested: int, available: int) -> None:
        """Keep the bytes that are needed, and those that the caller allows."""
        self.requested = requested
        self.available = available
        super().__init__(f"{op_type}: needs {requested} bytes, {available} are allowed")


class KernelAttributeError(KernelError):
    """An attribute is missing, unknown, or has a value that is not implemented."""
