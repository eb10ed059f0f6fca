"""Envelopes, typed values, numbers and repetitions, and the tables behind the gates.

All of it is sans-IO: bytes and times are handed in, what must be sent comes out. Read `envelope` first, then
`delivery`.
"""

from __future__ import annotations
