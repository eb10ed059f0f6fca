"""Memory that is handed out as views, and used again once no view of it is left.

A bytearray cannot change its size while anybody looks at it, through however many views of views: an array of
NumPy on it, and every slice of that. So its size is what tells whether it is free.
"""

from __future__ import annotations

__all__ = ["resize"]


def resize(memory: bytearray, size: int) -> bool:
    """Gives memory of 2 bytes or more another size, or the same one. False where somebody still looks at it.

    Nothing has changed then. What is in it afterwards says nothing.
    """
    try:
        if size < len(memory):
            del memory[size:]
        elif size > len(memory):
            memory.extend(bytes(size - len(memory)))
        else:
            del memory[-1:]
            memory.append(0)
    except BufferError:
        return False
    return True
