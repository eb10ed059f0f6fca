"""Our text notation: ONNX text plus what it drops (metadata of nodes, types that are not tensors, slots).

```
program Gossip {module=Gossip}

function program.Gossip(x: F32[n,64]) -> (y) {home=self}
  slot model: model
  slot peers: peer_selector peer_class=Client at=Server
  slot codec: codec = bb.Scalar8(0xa0)
  view: PeerIdVec = role.peer_selector.Sample<n=4>(x) {slot=peers, control_inputs=1}
  seen: F32[n,64], sender: PeerIdVec = wire.Send(x, view) {wire.wire_id=1, port=hello}
  y: F32 = Softmax<axis=1>(seen) @named
```

- Domains are short: ours lose their prefix (`wire.Send`, `role.model.Forward`, `program.Gossip`), ONNX's
  own is left out, others are quoted: `"user.app"::Op`.
- Metadata keys are ours and lose their prefix; a quoted key is taken as it stands. Attribute names are as
  they stand; one that begins with a dot is ours.
- Types stand where a value is defined: `F32[2,n,?]`, `F32` (unknown rank), `F32[]` (0-D), `Tensor`,
  `PeerIdVec`, …; `type name: T` gives one to a value that is defined nowhere.
- An absent input is `""`; any name that is not a plain word is quoted. `@name` is the node's name.
- Attributes: `1`, `0.5`, `"text"`, `0xa0` (bytes), `[1, 2]`, `F32[2]{1, 2}`, `F32[2]0x…`, `type(F32[2])`, and
  `graph name(inputs) -> (outputs) { meta {k=v} init w = F32[1]{0} … }`.
- Opset lines (`opset "" 21, wire 1`) stand only where they differ from what the ops used imply.

Tests read it (`tests/aids/program_text.py`): what `print_program(p)` writes gives `p`'s bytes again, value
infos in order of definition. A text without a `program` line is a program named after its first function.
"""

from __future__ import annotations

from bb_host.ir.text.printer import print_function, print_op, print_program

__all__ = ["print_function", "print_op", "print_program"]
