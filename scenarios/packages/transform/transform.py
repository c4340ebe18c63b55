"""transform: changes the body of each object that comes in on port `in`, and sends it on port `out`.

    transform --once --step invert      every byte becomes 255 minus it
    transform --once --step scale       every byte is multiplied by 7, modulo 256

Objects are those of `source`, which documents them. Each is checked, changed, given its new checksum and marked with
the step; a damaged one ends it with 1, and leaves its output unfinished. It ends when its input does, and closes its
output then; SIGTERM ends it before. What it has taken and not sent when it is killed is lost; nothing is sent twice.

Fields, one JSON line a second and at the end: objects, breaks (new lives of edges seen here and before), done.
"""

from __future__ import annotations

import argparse
import json
import signal
import struct
import time
import zlib

from runtime.workload import EndOfStream, InputPort, OutputPort, Ports, PortTimeout, Record

HEADER = struct.Struct("<QIIII")
STEPS = {
    "invert": (1, bytes(255 - value for value in range(256))),
    "scale": (2, bytes(value * 7 % 256 for value in range(256))),
}
PATIENCE_S = 0.25
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


class Damaged(Exception):
    """An object is not what its header says."""


class Stage:
    """One step; counts what went through."""

    def __init__(self, step: str) -> None:
        self._code, self._table = STEPS[step]
        self.objects = 0
        self.breaks = 0
        self._lives = 0

    def change(self, record: Record) -> bytes:
        """The object as it goes on. Raises `Damaged`."""
        payload = record.payload
        if len(payload) < HEADER.size:
            raise Damaged(f"object {record.object_id} of {len(payload)} bytes has no header")
        sequence, origin, checksum, steps, breaks = HEADER.unpack_from(payload)
        body = bytes(payload[HEADER.size :])
        if zlib.crc32(body, sequence & 0xFFFF_FFFF) != checksum:
            raise Damaged(f"object {sequence}: its checksum does not fit")
        if steps >> 24:
            raise Damaged(f"object {sequence} has gone through four steps, and has no room for a fifth")
        self._lives += record.sequence == 0
        self.breaks = breaks + self._lives - 1
        self.objects += 1
        body = body.translate(self._table)
        checksum = zlib.crc32(body, sequence & 0xFFFF_FFFF)
        return HEADER.pack(sequence, origin, checksum, steps << 8 | self._code, self.breaks) + body

    def tell(self, **more: object) -> None:
        print(json.dumps({"objects": self.objects, "breaks": self.breaks, **more}), flush=True)


def asked_to_stop() -> bool:
    return bool(signal.sigpending() & STOP_SIGNALS)


def run(source: InputPort, target: OutputPort, stage: Stage) -> bool:
    """False when it was told to stop before its input ended."""
    told = time.monotonic()
    while not asked_to_stop():
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            stage.tell()
        try:
            record = source.receive(timeout_s=PATIENCE_S)
        except PortTimeout:
            continue
        except EndOfStream:
            target.close()
            stage.tell(done=True)
            return True
        changed = stage.change(record)
        while not asked_to_stop():
            try:
                target.send(changed, object_id=record.object_id, timeout_s=PATIENCE_S)
                break
            except PortTimeout:  # no edge yet, or its consumer is slow
                continue
    return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="transform", description="Change objects on their way.")
    parser.add_argument("--once", action="store_true", required=True, help="until the input ends")
    parser.add_argument("--step", choices=sorted(STEPS), required=True, help="what is done to each")
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # they are looked for, so no object is ever cut in two
    ports = Ports.from_environment()
    run(ports.input("in"), ports.output("out"), Stage(options.step))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
