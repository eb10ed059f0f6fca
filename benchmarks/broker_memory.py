"""What a mosquitto takes per connected node: a connection, its subscription, a will, a retained presence.

python -m benchmarks.broker_memory [COUNT]
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.transport.packets import publish_header
from bb_edge.transport.topics import Topics
from bb_edge.wire.presence import Presence, encode_presence
from benchmarks.load_clients import EPOCH, LIMITS, packet, text


def rss_bytes(pid: int) -> int:
    """The resident memory of a process, bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def connect(port: int, number: int) -> socket.socket:
    """A connection with a will, a subscription and a retained presence, as a node has; all are there."""
    peer = PeerId.from_name(f"node-{number}")
    topics = Topics("load", peer)
    goodbye = encode_presence(Presence(False, EPOCH, session=1))
    will = b"\0" + text(topics.presence("Client", peer)) + len(goodbye).to_bytes(2, "big") + goodbye
    found = socket.create_connection(("127.0.0.1", port))
    flags = 0x02 | 0x04 | 0x08 | 0x20
    found.sendall(packet(0x10, text("MQTT") + bytes((5, flags, 0, 0, 0)) + text(f"n-{number}") + will))
    assert found.recv(4)[0] == 0x20
    found.sendall(packet(0x82, b"\0\1\0" + text(topics.inbox) + b"\1"))
    address = Address.empty().with_peer(peer).to_bytes()
    body = encode_presence(Presence(True, EPOCH, addresses=(address,), session=1, seq=1, meta=LIMITS))
    topic = topics.presence("Client", peer).encode()
    found.sendall(publish_header(topic, 2, len(body), v5=True, retain=True) + body)
    seen = b""
    while b"\x40" not in seen:
        seen += found.recv(256)
    return found


def main(count: int = 2_000) -> int:
    mosquitto = shutil.which("mosquitto")
    if mosquitto is None:
        print("mosquitto is not installed here", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        config = Path(folder) / "mosquitto.conf"
        user = "user root\n" if os.geteuid() == 0 else ""
        config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n{user}")
        broker = subprocess.Popen([mosquitto, "-c", config], stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 10
            while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < deadline:
                time.sleep(0.05)
            before = rss_bytes(broker.pid)
            nodes = [connect(port, number) for number in range(count)]
            after = rss_bytes(broker.pid)
            each = (after - before) / count / 1000
            print(f"{count} nodes: {each:.1f} kB each, {before / 1e6:.1f} MB without any")
            for node in nodes:
                node.close()
        finally:
            broker.terminate()
            broker.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
