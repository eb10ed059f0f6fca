"""What ops on the wire say in the text notation: `fill(0xA1, …)` answers to ASK's site, 0xB1 to REPLY's."""

from __future__ import annotations

ASK = "wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101"
REPLY = "wire.wire_id=2, wire.request=1, wire.site_ids=b1, wire.type_hashes=101"
SAY = "wire.wire_id=3, wire.site_ids=c1, wire.type_hashes=101"
ASK_ALL = "wire.wire_id=5, wire.site_ids=a2, wire.type_hashes=101"
REPLY_ALL = "wire.wire_id=6, wire.request=5, wire.site_ids=b2, wire.type_hashes=101"
