"""feed: what arrives on the node's sensor feed, one JSON line a report on standard output.

    feed                 listen; report at most once a second, and only when something arrived
    feed --interval N    report every N seconds, also when nothing arrived
    feed --once          report the first datagram (or that none came within ten seconds), then end

The feed is UDP on `SENNIT_CSI_BIND` (`address:port`; an IPv6 address in brackets). The first line says `listening`.
SIGTERM ends it with a last report. Fields: report (from 1), datagrams and bytes since the last report,
datagrams_total, bytes_total, and of the last datagram its sender, size and SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import select
import signal
import socket
import time

LARGEST_DATAGRAM = 65_535
ONCE_S = 10.0
LISTEN_REPORT_S = 1.0


class Tally:
    """Counts since the start and since the last report."""

    def __init__(self) -> None:
        self.reports = 0
        self.datagrams = self.size = 0
        self.datagrams_total = self.bytes_total = 0
        self.last: dict[str, object] = {}

    def take(self, data: bytes, sender: str) -> None:
        self.datagrams += 1
        self.size += len(data)
        self.datagrams_total += 1
        self.bytes_total += len(data)
        self.last = {"from": sender, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def report(self, **more: object) -> None:
        self.reports += 1
        line = {
            "report": self.reports,
            "wall_ms": time.time_ns() // 1_000_000,
            "datagrams": self.datagrams,
            "bytes": self.size,
            "datagrams_total": self.datagrams_total,
            "bytes_total": self.bytes_total,
            "last": self.last or None,
            **more,
        }
        print(json.dumps(line), flush=True)
        self.datagrams = self.size = 0


def open_feed(bind: str) -> socket.socket:
    host, separator, port = bind.rpartition(":")
    if not separator or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise SystemExit(f"feed: SENNIT_CSI_BIND is {bind!r}, expected address:port such as 127.0.0.1:5006")
    host = host.removeprefix("[").removesuffix("]")
    feed = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        feed.bind((host, int(port)))
    except OSError as error:
        raise SystemExit(f"feed: cannot listen on {bind}: {error.strerror}; is another instance there?") from None
    feed.setblocking(False)
    return feed


def drain(feed: socket.socket, tally: Tally) -> None:
    """Take what is there now, but not for ever: a flood must not keep the reports from being written."""
    for _ in range(1000):
        try:
            data, sender = feed.recvfrom(LARGEST_DATAGRAM)
        except BlockingIOError:
            return
        tally.take(data, f"{sender[0]}:{sender[1]}")


def run(feed: socket.socket, stop: socket.socket, period_s: float, once: bool, quiet: bool) -> None:
    """`quiet` leaves out reports of nothing."""
    tally = Tally()
    due = time.monotonic() + period_s
    while True:
        ready, _, _ = select.select([feed, stop], [], [], max(0.0, due - time.monotonic()))
        if feed in ready:
            drain(feed, tally)
        if stop in ready:
            tally.report(ended=True)
            return
        if once and tally.datagrams:
            tally.report()
            return
        if time.monotonic() >= due:
            if tally.datagrams or not quiet or once:
                tally.report()
            if once:
                return
            due = time.monotonic() + period_s


def main() -> int:
    parser = argparse.ArgumentParser(prog="feed", description="Report what arrives on the sensor feed.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="one report, then end")
    mode.add_argument("--interval", type=int, metavar="N", help="a report every N seconds, 1 to 3600")
    options = parser.parse_args()
    if options.interval is not None and not 1 <= options.interval <= 3600:
        parser.error("--interval must be 1 to 3600 seconds")
    bind = os.environ.get("SENNIT_CSI_BIND")
    if bind is None:
        raise SystemExit("feed: SENNIT_CSI_BIND is not set; the node sets it to the address of its feed")
    stop, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the byte on `stop` is what counts
    with open_feed(bind) as feed:
        print(json.dumps({"listening": bind}), flush=True)
        period_s = ONCE_S if options.once else float(options.interval or LISTEN_REPORT_S)
        run(feed, stop, period_s, options.once, quiet=options.interval is None)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
