"""Federations of real nodes in simulated time: a network that misbehaves, nodes that crash, disks that fail.

A seed decides everything: programs, faults, times. The same seed gives the same trace, byte for byte.
"""
