"""A program as it is loaded: immutable, shared by all nodes that install it."""
