"""xoscar as a peer of `sennit bench messaging` (the `bench` extra): the same asks and tells with its actors."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.bench.rounds import ASKS, BURST, TELLS, TEXT, WINDOW, Round, serving


def installed() -> bool:
    return importlib.util.find_spec("xoscar") is not None


@contextmanager
def peer(folder: Path) -> Iterator[Callable[[], Round]]:
    del folder
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with serving("runtime.bench.server", "xoscar", address):
        loop = asyncio.new_event_loop()
        import xoscar

        reference = loop.run_until_complete(xoscar.actor_ref(address=address, uid="echo"))
        try:
            yield lambda: loop.run_until_complete(_measure(reference))
        finally:
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()


async def _measure(reference: Any) -> Round:
    asks = []
    for _ in range(ASKS):
        began = time.perf_counter()
        await reference.echo(TEXT)
        asks.append(time.perf_counter() - began)

    async def one_by_one() -> None:
        for _ in range(WINDOW):
            await reference.say.tell(TEXT)

    async def at_once() -> None:
        for _ in range(WINDOW // BURST):
            await asyncio.gather(*[reference.say.tell(TEXT) for _ in range(BURST)])

    async def batched() -> None:
        for _ in range(WINDOW // BURST):
            await reference.say.batch(*[reference.say.delay(TEXT) for _ in range(BURST)])

    async def rate(window: Callable[[], Any]) -> float:
        expected = await reference.counted()
        began = time.perf_counter()
        for _ in range(TELLS // WINDOW):
            expected += WINDOW
            await window()
            while await reference.counted() < expected:
                pass
        return TELLS / (time.perf_counter() - began)

    return Round(asks, await rate(one_by_one), await rate(at_once), await rate(batched))


def serve(address: str) -> None:
    import xoscar

    class EchoActor(xoscar.Actor):  # type: ignore[misc]
        def __init__(self) -> None:
            self.count = 0

        @xoscar.extensible  # type: ignore[untyped-decorator]
        async def say(self, text: str) -> None:
            del text
            self.count += 1

        async def echo(self, text: str) -> str:
            return text

        async def counted(self) -> int:
            return self.count

    async def main() -> None:
        pool = await xoscar.create_actor_pool(address, n_process=0)
        await xoscar.create_actor(EchoActor, address=pool.external_address, uid="echo")
        print("ready", flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
