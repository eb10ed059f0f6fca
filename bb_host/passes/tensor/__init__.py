"""Passes over ordinary ONNX functions: smaller and faster, with no result changed beyond rounding.

Each is a pure function of its own module; `cleaning.clean_up` runs them to the fixed point. Nothing is
imported here: what lowers a program reads constants by `values`, also where there is no `onnx`.
"""
