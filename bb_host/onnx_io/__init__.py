"""Ordinary ONNX files: reading them, their form in ours, ONNX's own interface to a backend."""
