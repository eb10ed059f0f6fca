"""What all passes are and how they run: over a program, over a tensor function, over a target on its way out.

`one_pass.py` says what a pass is, `runner.py` runs a list of them. The lists, in the order of the work:
`bb_host/compiler/pipeline.py` (a recorded program becomes a compiled one) or `bb_host/cleanup` (an
ordinary ONNX model becomes smaller), then `bb_host/edge/pipeline.py` (a file per target).
"""
