"""All passes, what they are, and how they run: over a program, a tensor function, a target on its way out.

`one_pass.py` says what a pass is, `runner.py` runs a list of them. The lists, in the order of the work:
`pipeline.py` (a recorded program becomes a compiled one; its passes stand in `program/`),
`tensor/cleaning.py` (functions of ONNX ops become smaller), `device/pipeline.py` (a file per target). Queries
of a program that passes share stand in `analysis/`.
"""
