"""Nothing secret in what a run writes, says or hands on: every key's bytes are searched for, in every spelling.

A spelling is looked for by halves of a secret, so a shortened one is found too.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from actors.actor import AskFailed
from messages.base import Address
from messages.chain import Tail
from messages.control import CtlConfig, Interval, Method
from messages.gate import GetPolicy
from messages.placement import ListInstances, ListNodes, PlaceOrder
from messages.supervision import ChildState
from messages.system import GetProcess, GetState, ListActors
from runtime.cluster import SecretSeed, read_key, transport_key
from runtime.packages.directory import sign

REPOSITORY = Path(__file__).parents[3]
PLANE, CHAIN = Address("controller/plane"), Address("chain/chain")
TRACED = ("controller/plane", "shed/agent", "gate/gate", "chain/chain")
HALF_BYTES = 16


def base64_cores(data: bytes, altchars: bytes | None) -> Iterator[bytes]:
    """The digits that `data` alone decides, at each of its three places in a longer text."""
    for before in range(3):
        digits = base64.b64encode(bytes(before) + data, altchars)
        yield digits[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]


def z85_cores(data: bytes) -> Iterator[bytes]:
    for before in range(4):
        whole = data[-before % 4 :]
        yield z85.encode(whole[: len(whole) // 4 * 4])


def spelled(data: bytes) -> dict[str, set[bytes]]:
    """By name: every text that shows `data`."""
    digits = base64.b16encode(data)
    escaped = "".join(repr(bytes([byte]))[2:-1] for byte in data)  # within "..." a ' stays bare
    in_json = data.decode("latin-1").encode("unicode_escape")
    return {
        "raw": {data},
        "hex": {digits.lower(), digits},
        "hex in groups": {data.hex(sep).encode() for sep in ": -"},
        "base64": {*base64_cores(data, None)},
        "base64url": {*base64_cores(data, b"-_")},
        "z85": {*z85_cores(data)},
        "ascii85": {base64.b85encode(data), base64.a85encode(data)},
        "decimal": {str(list(data))[1:-1].encode(), ",".join(map(str, data)).encode()},
        "repr": {escaped.encode(), escaped.replace("'", "\\'").encode()},
        "repr in JSON": {text.replace("\\", "\\\\").encode() for text in (escaped, escaped.replace("'", "\\'"))},
        "escapes": {in_json},
    }


Spellings = dict[bytes, tuple[str, str]]


def spellings_of(secrets: dict[str, bytes]) -> Spellings:
    """Every text that must not show, with whose secret it is and how that is spelled."""
    return {
        text: (whose, how)
        for whose, secret in secrets.items()
        for half in (secret[:HALF_BYTES], secret[-HALF_BYTES:])
        for how, texts in spelled(half).items()
        for text in texts
    }


def found(spellings: Spellings, data: bytes) -> set[tuple[str, str]]:
    return {what for text, what in spellings.items() if text in data}


# that the search finds what is there


def shown(secret: bytes) -> dict[str, bytes]:
    """Spelled by those who would, not by the search."""
    return {
        "raw": secret,
        "hex": secret.hex().encode(),
        "HEX": secret.hex().upper().encode(),
        "fingerprint": secret.hex(":").encode(),
        **{f"base64 at {n}": base64.b64encode(b"key"[:n] + secret + b"tail") for n in range(3)},
        **{f"base64url at {n}": base64.urlsafe_b64encode(b"key"[:n] + secret + b"tail") for n in range(3)},
        "z85": z85.encode(secret),
        "z85 within": z85.encode(b"ab" + secret + b"cd"),
        "base85": base64.b85encode(secret),
        "decimal": str(list(secret)).encode(),
        "decimal in JSON": b"[" + ",".join(map(str, secret)).encode() + b"]",
        "repr": repr(secret).encode(),
        "repr of more": repr(b"'\"" + secret).encode(),
        "repr in JSON": repr(secret).replace("\\", "\\\\").encode(),
        "half of it": secret.hex()[:32].encode(),
        "the other half": repr(secret[16:]).encode(),
    }


@pytest.mark.parametrize("secret", [bytes(range(150, 182)), b"it's 'quoted' and \\ 32 bytes \0\n\xff", os.urandom(32)])
@pytest.mark.parametrize("how", shown(bytes(32)))
def test_a_planted_secret_is_found(secret, how):
    text = b'{"text": "' + shown(secret)[how] + b'"}'
    spellings = spellings_of({"planted": secret, "other": b"\x07" * 32})
    assert {whose for whose, _ in found(spellings, text)} == {"planted"}


def test_what_shows_no_secret_is_left_alone():
    seed = SecretSeed.generate()
    text = f"{seed!r} {seed} {seed.public_key.hex()} {transport_key(seed.public_key)!r}".encode()
    assert not found(spellings_of(secrets_of({"key": seed})), text)


# a run


def secrets_of(seeds: dict[str, SecretSeed]) -> dict[str, bytes]:
    ours = {f"seed of {name}": seed.reveal() for name, seed in seeds.items()}
    return ours | {f"transport secret of {name}": seed.transport_secret() for name, seed in seeds.items()}


class Heard:
    """Everything that the run said, by where it was seen."""

    def __init__(self, live) -> None:
        self.live = live
        self.said: dict[str, bytes] = {}

    def note(self, where: str, what: object) -> None:
        data = what if isinstance(what, bytes) else repr(what).encode()
        self.said[where] = self.said.get(where, b"") + data + b"\n"

    def ask(self, to, request, timeout_s=10.0):
        """The answer, or None for a refusal: either is noted."""
        try:
            answer = self.live.ask(Address(to), request, timeout_s)
        except AskFailed as failed:
            self.note(f"{to} {type(request).__name__}", failed)
            return None
        self.note(f"{to} {type(request).__name__}", answer)
        return answer

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def sennit(self, *words: str) -> subprocess.Popen[bytes]:
        return self.command("runtime.cli", *words, "--cluster", str(self.live.cluster.path))

    def end(self, process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
        out, err = process.communicate(timeout=30)
        self.note(f"output of {' '.join(process.args[2:4])}", out + err)
        return process.returncode, out + err

    def process(self, pid: int, what: str) -> None:
        """What a process was given; that none of it keeps a key file open."""
        for file in ("environ", "cmdline"):
            self.note(f"{file} of {what}", Path(f"/proc/{pid}/{file}").read_bytes())
        keys = str(self.live.cluster.keys_dir)
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(entry.path)
            except FileNotFoundError:
                continue
            assert not target.startswith(keys), f"{what} holds {target} open"

    def files(self) -> None:
        """Every file that the run left, besides the keys themselves."""
        keys = self.live.cluster.keys_dir
        for path in self.live.folder.rglob("*"):
            if path.is_file() and not path.is_relative_to(keys):
                self.note(str(path.relative_to(self.live.folder)), path.read_bytes())

    def shows(self, secrets: dict[str, bytes]) -> dict[str, set[tuple[str, str]]]:
        spellings = spellings_of(secrets)
        return {where: leaks for where, data in self.said.items() if (leaks := found(spellings, data))}


def look_everywhere(heard: Heard) -> None:
    for process in ("root", "chain", "gate", "controller", "shed"):
        heard.ask(f"{process}/supervisor", GetProcess())
        actors = heard.ask(f"{process}/supervisor", ListActors()).actors
        assert actors
        for row in actors:
            assert heard.ask(row.address, GetState()) is not None
    for one in heard.live.left():
        heard.process(one.pid, f"{one.kind} {one.name}")


def knock_as_a_stranger(live, stranger: SecretSeed) -> None:
    """Dial the chain with a key that nobody listed, until it says so in its log."""
    chain = live.cluster.process("chain")
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.curve_publickey, dealer.curve_secretkey = transport_key(stranger.public_key), stranger.transport_secret()
        dealer.curve_serverkey = transport_key(chain.public_key)
        dealer.connect(chain.control)
        log = live.cluster.log_file("chain")
        live.until(lambda: "refused connection" in log.read_text(), what="the stranger is refused")


def start_with_wrong_keys(heard: Heard, seeds: dict[str, SecretSeed]) -> None:
    """A copy of the cluster whose keys are damaged, cut, exchanged, or somebody else's."""
    copy = heard.live.folder / "copy"
    shutil.copytree(heard.live.cluster.path, copy, ignore=shutil.ignore_patterns("run", "state", "logs"))
    digits = seeds["controller"].reveal().hex()
    wrong = {
        "chain": seeds["stranger"].reveal().hex() + "\n",
        "gate": seeds["shed"].reveal().hex() + "\n",
        "controller": digits[:-1] + "z\n",
        "shed": digits[:48],
    }
    started = []
    for name, text in wrong.items():
        (copy / "keys" / f"{name}.key").write_text(text)
        started.append(heard.command("runtime.process", name, "--cluster", str(copy), "--life", "1"))
    (copy / "keys" / "operator.key").write_text(wrong["chain"])
    started.append(heard.command("runtime.cli", "init", str(copy), "--update"))
    for process in started:
        code, words = heard.end(process)
        assert code != 0
        assert b"key" in words
    shutil.rmtree(copy / "keys")


def crash_the_plane(heard: Heard) -> None:
    """It crashes where it has its seed in hand, and comes back when the cause is gone."""
    live = heard.live
    trust = live.cluster.trust_file
    good = trust.read_bytes()
    trust.write_text("{")
    life = live.life("controller")
    life.kill()
    assert life.wait_end()
    log = live.cluster.log_file("controller")
    crashed = live.wait_child("controller", lambda child: "plane" in child.last_exit or "trust" in child.last_exit)
    heard.note("tree of the root", crashed)
    live.until(lambda: "Traceback" in log.read_text(), what="the plane's crash is in the log")
    trust.write_bytes(good)
    live.wait_child("controller", lambda child: child.state is ChildState.RUNNING)


def test_no_key_shows_in_anything_that_a_run_writes_says_or_hands_on(make_cluster):
    live = make_cluster()
    seeds = {path.stem: read_key(path) for path in live.cluster.keys_dir.glob("*.key")}
    assert {"root", "chain", "gate", "controller", "shed", "shed.edges", "operator", "signer"} <= set(seeds)
    seeds["stranger"] = SecretSeed.generate()
    heard = Heard(live.up())

    traces = [heard.sennit("actor", "trace", address, "--count", "6", "--json") for address in TRACED]
    line = live.place()
    for method in (Method.STATUS, Method.LOGS):
        heard.note(method, live.order(method, line.instance_id))
    for trace in traces:
        assert heard.end(trace)[0] == 0

    unlisted = live.folder / "unlisted"
    shutil.copytree(live.package, unlisted)
    sign(unlisted, seeds["stranger"])
    config = CtlConfig(mode=Interval(secs=1), args=["--label", "never"])
    heard.ask(PLANE, PlaceOrder(package_dir=str(unlisted), config=config, pin="shed"))
    assert b"signer" in heard.said[f"{PLANE} PlaceOrder"]

    knock_as_a_stranger(live, seeds["stranger"])
    start_with_wrong_keys(heard, seeds)
    look_everywhere(heard)
    assert heard.said[f"environ of workload {line.instance_id}"]
    assert heard.said[f"environ of shim {line.instance_id}"]
    crash_the_plane(heard)
    live.wait_alive()
    live.unload(line.instance_id)

    for to, request in ((PLANE, ListInstances()), (PLANE, ListNodes()), (CHAIN, Tail(count=1000))):
        assert heard.ask(to, request) is not None
    heard.ask("gate/gate", GetPolicy())
    looks = [
        heard.sennit("status"),
        heard.sennit("tree"),
        heard.sennit("actor", "state", PLANE),
        heard.sennit("doctor"),
    ]
    for look in looks:
        assert heard.end(look)[1]
    assert live.end() == 0
    heard.files()

    assert any(where.endswith("logs/controller.jsonl") for where in heard.said)
    assert any("/state/chain/" in where for where in heard.said)
    assert heard.shows(secrets_of(seeds)) == {}

    # and it would have been seen
    (live.cluster.state_dir("shed") / "left.tmp").write_text(f"key={seeds['shed'].transport_secret()!r}")
    heard.files()
    assert {whose for leaks in heard.shows(secrets_of(seeds)).values() for whose, _ in leaks} == {
        "transport secret of shed"
    }
