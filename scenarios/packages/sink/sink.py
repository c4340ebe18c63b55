"""sink: checks each object of a `source`, which documents them, on port `in`; a JSON line a second, then a verdict.

    sink --once [--count N] [--steps STEP+STEP]

Every object must be whole: both checksums fit, the second after its steps are undone. Each must come once and in
order. Numbers may be missing only where an edge had a new life in between: its own, whose records then begin with
sequence 0 again, or one before, which the object tells (`breaks`). `--count`: how many its source sends; of those that
did not come, the same holds. `--steps`: the transforms that each must have gone through, in order.

It ends when its input does, with 0 if all was well and 1 if not; SIGTERM ends it before. What it has seen is kept in
`SENNIT_DATA_DIR`, so a sink that is started again still notices what comes twice.

Fields: objects, bytes, next (the sequence that must come), lost (where that is allowed), breaks, wrong (each fault of
the first ten, in words); at the end verdict, "good" or "bad".
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import time
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

from runtime.workload import EndOfStream, InputPort, Ports, PortTimeout

HEADER = struct.Struct("<QIIII")
STEPS = {
    "invert": (1, bytes(255 - value for value in range(256))),
    "scale": (2, bytes(value * 183 % 256 for value in range(256))),  # 7 * 183 = 1 modulo 256
}
UNDO = dict(STEPS.values())
PATIENCE_S = 0.25
WORDS = 10
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


@dataclass
class Ledger:
    """What has come. `seen`: the breaks that the newest object told; `begun`: its edge has lived before."""

    objects: int = 0
    bytes: int = 0
    next: int = 0
    lost: int = 0
    breaks: int = 0
    seen: int = 0
    begun: bool = False
    wrong: list[str] = field(default_factory=list)

    def blame(self, what: str) -> None:
        if len(self.wrong) < WORDS:
            self.wrong.append(what)

    def take(self, payload: memoryview, *, new_life: bool, steps: int | None) -> None:
        """One object; `new_life`: it is the first of a life of the edge that leads here."""
        if len(payload) < HEADER.size:
            self.blame(f"an object of {len(payload)} bytes after {self.objects} others has no header")
            return
        sequence, *_, breaks = HEADER.unpack_from(payload)
        if why := damage(payload, steps):
            self.blame(f"object {sequence} {why}")
        broken = (new_life and self.begun) or breaks != self.seen
        self.seen, self.begun = breaks, True
        self.breaks += broken
        if sequence < self.next:
            self.blame(f"object {sequence} came twice or late: {self.next} was to come")
            return
        missing = sequence - self.next
        if missing and not broken:
            self.blame(f"objects {self.next} to {sequence - 1} are missing, and no edge had a new life")
        self.lost += missing
        self.next = sequence + 1
        self.objects += 1
        self.bytes += len(payload)

    def end(self, count: int | None) -> None:
        """Nothing more comes."""
        if count is None:
            return
        missing = count - self.next
        if missing > 0 and not self.breaks:
            self.blame(f"objects {self.next} to {count - 1} are missing, and no edge had a new life")
        elif missing < 0:
            self.blame(f"{-missing} objects more than the {count} that were to come")
        self.lost += max(0, missing)

    def tell(self, **more: object) -> None:
        members = {name: value for name, value in asdict(self).items() if name not in ("seen", "begun")}
        print(json.dumps({**members, **more}), flush=True)


def damage(payload: memoryview, steps: int | None) -> str:
    """What is wrong with an object; empty when nothing is."""
    sequence, origin, checksum, taken, _ = HEADER.unpack_from(payload)
    body = bytes(payload[HEADER.size :])
    start = sequence & 0xFFFF_FFFF
    if zlib.crc32(body, start) != checksum:
        return "is damaged: its checksum does not fit"
    if steps is not None and taken != steps:
        return f"went through the steps {taken:#x}, not {steps:#x}"
    while taken:
        undo = UNDO.get(taken & 0xFF)
        if undo is None:
            return f"went through an unknown step {taken & 0xFF}"
        body, taken = body.translate(undo), taken >> 8
    return "" if zlib.crc32(body, start) == origin else "is not what its source sent: the first checksum does not fit"


class Memory:
    """The ledger in a file, where there is a folder for it."""

    def __init__(self, folder: str | None) -> None:
        self._file = Path(folder, "ledger.json") if folder is not None else None

    def read(self) -> Ledger:
        if self._file is None or not self._file.exists():
            return Ledger()
        return Ledger(**{**json.loads(self._file.read_text()), "begun": True})

    def write(self, ledger: Ledger) -> None:
        if self._file is not None:
            fresh = self._file.with_suffix(".new")
            fresh.write_text(json.dumps(asdict(ledger)))
            os.replace(fresh, self._file)


def run(port: InputPort, memory: Memory, count: int | None, steps: int | None) -> bool:
    """Whether all was well."""
    ledger = memory.read()
    memory.write(ledger)
    told = time.monotonic()
    ended = False
    while not ended and not signal.sigpending() & STOP_SIGNALS:
        try:
            record = port.receive(timeout_s=PATIENCE_S)
            ledger.take(record.payload, new_life=record.sequence == 0, steps=steps)
        except PortTimeout:
            pass
        except EndOfStream:
            ended = True
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            memory.write(ledger)
            ledger.tell()
    if ended:
        ledger.end(count)
    memory.write(ledger)
    ledger.tell(ended=ended, verdict="bad" if ledger.wrong else "good")
    return not ledger.wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="sink", description="Check what comes.")
    parser.add_argument("--once", action="store_true", required=True, help="until the input ends")
    parser.add_argument("--count", type=int, metavar="N", help="how many objects the source sends")
    parser.add_argument("--steps", metavar="STEP+STEP", help="the transforms that each object went through")
    options = parser.parse_args()
    steps = None
    if options.steps is not None:
        steps = 0
        for name in options.steps.split("+"):
            if name not in STEPS:
                parser.error(f"--steps: there is no step {name!r}; there are {', '.join(STEPS)}")
            steps = steps << 8 | STEPS[name][0]
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # they are looked for, so no line is ever cut in two
    port = Ports.from_environment().input("in")
    well = run(port, Memory(os.environ.get("SENNIT_DATA_DIR")), options.count, steps)
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
