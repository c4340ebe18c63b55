"""The other end of a messaging benchmark, as a process of its own: `python -m runtime.bench.server PEER WHERE`."""

from __future__ import annotations

import sys
from pathlib import Path

from runtime.bench import messaging, xoscar_peer

if __name__ == "__main__":
    peer, where = sys.argv[1:]
    match peer:
        case "ours":
            messaging.serve_ours(Path(where))
        case "raw":
            messaging.serve_raw(Path(where))
        case "xoscar":
            xoscar_peer.serve(where)
        case _:
            sys.exit(f"no peer is called {peer!r}")
