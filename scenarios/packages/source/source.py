"""source: numbered objects of known content on port `out`, one JSON line of progress a second.

    source --once [--count N] [--size BYTES] [--rate N]

Sends N objects (1000) of BYTES bytes (4096, a multiple of 8, at least 32), at most `--rate` a second, then closes the
port and ends. SIGTERM ends it before. An object, numbers little-endian:

    0   sequence   u64   from 0, never the same twice
    8   origin     u32   CRC-32 of the body as the source made it, begun with the sequence
    12  checksum   u32   the same of the body as it is now
    16  steps      u32   one byte for each transform it went through, the newest lowest
    20  breaks     u32   how many new lives of edges the stages before have seen
    24  body             bytes of a fixed block, from sequence modulo 251 on

Numbers are reserved in `SENNIT_DATA_DIR` before they are used: a source that is started again goes on behind them, so
that what was under way is lost and never sent twice.

Fields: sent (objects in this run), next (sequence); at the end done and bytes too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import struct
import time
import zlib
from pathlib import Path

from runtime.workload import OutputPort, Ports, PortTimeout

HEADER = struct.Struct("<QIIII")
OFFSETS = 251
RESERVED = 64
PATIENCE_S = 0.25
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


class Numbers:
    """Sequence numbers from 0, reserved in a file where there is a folder for it."""

    def __init__(self, folder: str | None) -> None:
        self._file = Path(folder, "numbers") if folder is not None else None
        known = self._file is not None and self._file.exists()
        self._reserved = int(self._file.read_text()) if known and self._file is not None else 0
        self.next = self._reserved

    def take(self) -> int:
        if self.next == self._reserved:
            self._reserved += RESERVED
            if self._file is not None:
                fresh = self._file.with_suffix(".new")
                fresh.write_text(str(self._reserved))
                os.replace(fresh, self._file)
        self.next += 1
        return self.next - 1


class Objects:
    """Makes objects of one size."""

    def __init__(self, size: int) -> None:
        self._body = size - HEADER.size
        self._block = memoryview(hashlib.shake_128(b"sennit sample").digest(self._body + OFFSETS))

    def fill(self, view: memoryview, sequence: int) -> None:
        start = sequence % OFFSETS
        body = self._block[start : start + self._body]
        checksum = zlib.crc32(body, sequence & 0xFFFF_FFFF)
        HEADER.pack_into(view, 0, sequence, checksum, checksum, 0, 0)
        view[HEADER.size :] = body


def asked_to_stop(wait_s: float = 0.0) -> bool:
    return signal.sigtimedwait(STOP_SIGNALS, max(0.0, wait_s)) is not None


def run(port: OutputPort, numbers: Numbers, count: int, size: int, rate: int | None) -> bool:
    """False when it was told to stop before all was sent."""
    objects = Objects(size)
    began = told = time.monotonic()
    sent = 0
    while numbers.next < count:
        sequence = numbers.take()
        while True:
            try:
                with port.reserve(size, object_id=sequence, timeout_s=PATIENCE_S) as view:
                    objects.fill(view, sequence)
                break
            except PortTimeout:  # no edge yet, or its consumer is slow
                if asked_to_stop():
                    return False
        sent += 1
        now = time.monotonic()
        if now - told >= 1:
            told = now
            print(json.dumps({"sent": sent, "next": numbers.next}), flush=True)
        if asked_to_stop(began + sent / rate - now if rate is not None else 0.0):
            return False
    port.close()
    print(json.dumps({"sent": sent, "next": numbers.next, "bytes": sent * size, "done": True}), flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="source", description="Send objects that a sink can check.")
    parser.add_argument("--once", action="store_true", required=True, help="send them, then end")
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="how many objects")
    parser.add_argument("--size", type=int, default=4096, metavar="BYTES", help="of each object")
    parser.add_argument("--rate", type=int, metavar="N", help="at most so many a second")
    options = parser.parse_args()
    if options.count < 1 or (options.rate is not None and options.rate < 1):
        parser.error("--count and --rate must be at least 1")
    if options.size < HEADER.size + 8 or options.size % 8:
        parser.error(f"--size must be a multiple of 8 and at least {HEADER.size + 8}")
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # they are waited for, so no object is ever cut in two
    port = Ports.from_environment().output("out")
    run(port, Numbers(os.environ.get("SENNIT_DATA_DIR")), options.count, options.size, options.rate)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
