"""Coverage-guided fuzzing of one target: `python -m tests.fuzz.run TARGET [--seconds 60]`, or `make fuzz TARGET=...`.

The corpus begins with the target's valid examples and is kept in `.fuzz/TARGET/`, so that a later run goes on where
this one ended. A finding (another exception than the target's own fault, an input that takes longer than 10 s, more
than 1 GiB of memory) ends the run with a nonzero code; the input lies beside the corpus as `.fuzz/TARGET.crash-*`.
Give it as `--input FILE` to see it again.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from hashlib import sha256
from pathlib import Path

MAX_SECONDS_PER_INPUT = 10
MAX_MEMORY_MIB = 1024
MAX_INPUT_BYTES = 64 * 1024
INSTRUMENTED = ["actors", "messages", "runtime", "tomllib", "json"]
CORPUS = Path(__file__).parents[2] / ".fuzz"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="a name of tests/fuzz/targets.py; `list` names them")
    parser.add_argument("--seconds", type=int, default=60, help="how long (default 60)")
    parser.add_argument("--input", type=Path, help="read this one file instead, without the fuzzer")
    chosen = parser.parse_args()
    try:
        atheris = importlib.import_module("atheris")
    except ImportError:
        atheris = None
    if atheris is None and chosen.input is None and chosen.target != "list":
        print("fuzzing is skipped: atheris is not installed; pip install -e '.[fuzz]' brings it")
        return 0
    if atheris is None:
        from tests.fuzz.targets import TARGETS
    else:
        with atheris.instrument_imports(include=INSTRUMENTED):
            from tests.fuzz.targets import TARGETS
    if chosen.target == "list":
        print("\n".join(TARGETS))
        return 0
    if chosen.target not in TARGETS:
        parser.error(f"no target is called {chosen.target!r}; there are: {', '.join(TARGETS)}")
    target = TARGETS[chosen.target]
    if chosen.input is not None:
        print(repr(target.run(chosen.input.read_bytes())))
        return 0
    corpus = CORPUS / chosen.target
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (corpus / sha256(seed).hexdigest()[:16]).write_bytes(seed)

    def one(data: bytes) -> None:
        target.run(data)

    options = [
        f"-max_total_time={chosen.seconds}",
        f"-timeout={MAX_SECONDS_PER_INPUT}",
        f"-rss_limit_mb={MAX_MEMORY_MIB}",
        f"-max_len={min(target.limit_bytes, MAX_INPUT_BYTES)}",
        f"-artifact_prefix={CORPUS / chosen.target}.",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
