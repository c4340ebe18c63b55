"""`sennit bench`: measure messaging, the chain, placement, restarts and edges on this machine (design 11)."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from runtime.cli.options import JsonOption, verbs
from runtime.cli.output import ExitCode, Failed, print_document, print_facts, print_table

if TYPE_CHECKING:
    from runtime.bench.rounds import Figures

app = verbs()


@app.callback()
def bench() -> None:
    """Measure messaging, the chain, placement, restarts and edges.

    \b
    Examples:
      sennit bench messaging
      sennit bench chain --json
    """


@app.command()
def messaging(as_json: JsonOption = False) -> None:
    """Questions and messages between two processes, beside raw sockets and, where installed, xoscar.

    \b
    Example:
      sennit bench messaging
    """
    from runtime.bench.machine import machine

    measured = _run("messaging")
    if as_json:
        print_document({"machine": machine(), "peers": [asdict(figures) for figures in measured]})
        return
    print_table(
        ("", "ask p50", "ask p99", "tells/s, singly", "tells/s, in bursts", "batched/s"),
        [
            (
                figures.name,
                f"{figures.ask_p50_us:.0f} us",
                f"{figures.ask_p99_us:.0f} us",
                f"{figures.single_per_s:,.0f}",
                f"{figures.burst_per_s:,.0f}",
                "-" if figures.batch_per_s is None else f"{figures.batch_per_s:,.0f}",
            )
            for figures in measured
        ],
    )
    print_facts([*_shares(measured), ("machine", machine())])


def _shares(measured: list[Figures]) -> list[tuple[str, str]]:
    """Ours beside each peer of the same run: times as long an ask takes, times as many tells."""
    ours, *peers = measured
    shares = []
    for peer in peers:
        ask = ours.ask_p50_us / peer.ask_p50_us
        single, burst = ours.single_per_s / peer.single_per_s, ours.burst_per_s / peer.burst_per_s
        text = f"an ask takes {ask:.1f} times as long; {single:.1f} times the tells singly, {burst:.1f} times in bursts"
        shares.append((f"beside {peer.name}", text))
    return shares


@app.command()
def chain(as_json: JsonOption = False) -> None:
    """Durable appends and verification of the chain, beside what the disk and the database can do.

    \b
    Example:
      sennit bench chain
    """
    measured = _run("chain")
    if as_json:
        print_document(asdict(measured))
        return
    print_table(
        ("", "appends/s, singly", "of raw", "appends/s, grouped", "of raw", "group"),
        [
            (
                made.name,
                f"{made.single_per_s:,.0f}",
                f"{made.single_share:.0%}",
                f"{made.grouped_per_s:,.0f}",
                f"{made.grouped_share:.0%}",
                f"{made.batch:.0f}",
            )
            for made in measured.appends
        ],
    )
    print()
    print_table(
        ("", "records", "verified/s", "of its bound"),
        [(read.name, read.records, f"{read.per_s:,.0f}", f"{read.share:.0%}") for read in measured.verified],
    )
    print_facts([("machine", measured.machine)])


@app.command()
def place(as_json: JsonOption = False) -> None:
    """Placement: the pure decision, an order on the simulated world, an order to a cluster of processes.

    \b
    Example:
      sennit bench place
    """
    measured = _run("place")
    if as_json:
        print_document(asdict(measured))
        return
    print_table(
        ("engine alone: nodes", "eligible", "decision", "decisions/s"),
        [
            (one.nodes, one.eligible, f"{one.decision_ms:.1f} ms", f"{one.decisions_per_s:,.0f}")
            for one in measured.engine
        ],
    )
    print()
    print_table(
        ("simulated world: nodes", "dry run", "placement", "engine alone"),
        [
            (one.nodes, f"{one.dry_run_ms:.1f} ms", f"{one.place_ms:.1f} ms", f"{one.engine_ms:.1f} ms")
            for one in measured.simulated
        ],
    )
    print()
    live = measured.live
    print_table(
        ("live cluster: nodes", "dry run", "placement", "bare python"),
        [(live.nodes, f"{live.dry_run_ms:.1f} ms", f"{live.place_ms:.1f} ms", f"{live.bare_python_ms:.1f} ms")],
    )
    for what, busy in (("dry run", live.dry_run_busy_ms), ("placement", live.place_busy_ms)):
        print()
        print_table((f"busy for a {what}", ""), [(kind, f"{busy_ms:.1f} ms") for kind, busy_ms in busy.items()])
    print_facts([("machine", measured.machine)])


@app.command()
def restart(as_json: JsonOption = False) -> None:
    """How long a killed process takes to serve again.

    \b
    Example:
      sennit bench restart
    """
    measured = _run("restart")
    plain = asdict(measured) if is_dataclass(measured) and not isinstance(measured, type) else dict(measured)
    if as_json:
        print_document(plain)
    else:
        print_facts([(name.replace("_", " "), value) for name, value in plain.items()])


@app.command()
def edges(as_json: JsonOption = False) -> None:
    """Objects from workload to workload, beside a copy of memory and beside bare sockets. Takes some minutes.

    \b
    Example:
      sennit bench edges
    """
    from runtime.cli.sizes import size_text

    measured = _run("edges")
    if as_json:
        print_document(asdict(measured))
        return
    print_table(
        ("", "object", "ring", "sent/s", "MB/s", "of limit", "made in place/s", "MB/s", "of limit", "limit MB/s"),
        [
            (
                flow.path,
                size_text(flow.object_bytes),
                size_text(flow.ring_bytes),
                f"{flow.objects_per_s:,.0f}",
                f"{flow.bytes_per_s / 1e6:,.0f}",
                f"{flow.share:.0%}",
                f"{flow.made_objects_per_s:,.0f}",
                f"{flow.made_bytes_per_s / 1e6:,.0f}",
                f"{flow.made_share:.0%}",
                f"{flow.limit_bytes_per_s / 1e6:,.0f}",
            )
            for flow in measured.flows
        ],
    )
    print()
    print_table(
        ("one way, at a low rate", "p50", "p99", "two wake-ups p50", "p99"),
        [
            (one.path, *(f"{us:.0f} us" for us in (one.p50_us, one.p99_us, one.woken_p50_us, one.woken_p99_us)))
            for one in measured.latencies
        ],
    )
    print()
    print_table(
        ("behind a slow sink", "waiting at most", "of both rings", "cluster grew by"),
        [
            (one.path, size_text(one.waiting_bytes), size_text(one.bound_bytes), size_text(one.grown_bytes))
            for one in measured.bounded
        ],
    )
    beside = measured.beside
    busy = f"p50 {beside.busy_p50_ms:.1f} ms, p99 {beside.busy_p99_ms:.1f} ms (idle: p99 {beside.idle_p99_ms:.1f} ms)"
    print_facts(
        [
            (f"asks to the agent beside {beside.edges} busy edges", busy),
            ("they moved", f"{beside.bytes_per_s / 1e6:,.0f} MB/s"),
            ("machine", measured.machine),
        ]
    )


def _run(name: str) -> Any:
    """What `runtime.bench.NAME` measures. Measurements are no part of a smaller installation."""
    try:
        module = import_module(f"runtime.bench.{name}")
    except ModuleNotFoundError as error:
        raise Failed(ExitCode.USAGE, "not_installed", f"bench {name} cannot run here: {error}") from None
    return module.run()
