"""Ordinary ONNX files: reading them, and their form in ours."""
