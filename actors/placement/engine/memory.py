"""How much memory a node has free, by pool, and whether a demand fits (G 1.2, memory pools).

A node with a `mem.unified` capability has one pool for host and accelerator; any other has a system pool and a pool of
accelerator memory. All sums saturate at 2^64 - 1 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from messages.base import U64_MAX
from messages.capabilities import Capability, MemoryDemand, as_f64


class Pool(StrEnum):
    UNIFIED = "unified"
    SYSTEM = "system"
    VRAM = "vram"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """`need` of `free` bytes do not fit."""

    pool: Pool
    need: int
    free: int

    def detail(self) -> str:
        return f"{self.pool} pool: need {self.need} bytes, free {self.free} bytes"


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Free bytes; `host` is the one pool of a unified node, whose `vram` is 0."""

    unified: bool
    host: int
    vram: int

    @classmethod
    def from_capabilities(cls, capabilities: Sequence[Capability]) -> MemoryLedger:
        system = next((_free(capability) for capability in capabilities if capability.id == "mem.system"), None)
        unified = next((capability for capability in capabilities if capability.id == "mem.unified"), None)
        if unified is not None:
            pool = _free(unified)
            return cls(unified=True, host=pool if pool is not None else system or 0, vram=0)
        vram = saturating_sum(*(_free(capability) or 0 for capability in capabilities if capability.id == "mem.vram"))
        return cls(unified=False, host=system or 0, vram=vram)

    def check(self, demand: MemoryDemand) -> Shortfall | None:
        if self.unified:
            need = saturating_sum(demand.host_bytes, demand.accel_bytes)
            return None if need <= self.host else Shortfall(Pool.UNIFIED, need, self.host)
        if demand.host_bytes > self.host:
            return Shortfall(Pool.SYSTEM, demand.host_bytes, self.host)
        if demand.accel_bytes > self.vram:
            return Shortfall(Pool.VRAM, demand.accel_bytes, self.vram)
        return None

    def reserve(self, demand: MemoryDemand) -> MemoryLedger | Shortfall:
        """The ledger with `demand` taken, or why it does not fit."""
        if (shortfall := self.check(demand)) is not None:
            return shortfall
        if self.unified:
            return replace(self, host=self.host - demand.host_bytes - demand.accel_bytes)
        return replace(self, host=self.host - demand.host_bytes, vram=self.vram - demand.accel_bytes)


def combined(*demands: MemoryDemand) -> MemoryDemand:
    return MemoryDemand(
        host_bytes=saturating_sum(*(demand.host_bytes for demand in demands)),
        accel_bytes=saturating_sum(*(demand.accel_bytes for demand in demands)),
    )


def saturating_sum(*numbers: int) -> int:
    return min(sum(numbers), U64_MAX)


def _free(capability: Capability) -> int | None:
    """Attribute `free`, else `total`, as whole bytes; None when neither is a number."""
    for name in ("free", "total"):
        number = as_f64(capability.attrs.get(name))
        if number is not None:
            return _bytes(number)
    return None


def _bytes(number: float) -> int:
    if math.isnan(number) or number <= 0:
        return 0
    return U64_MAX if number >= U64_MAX else int(number)


__all__ = ["MemoryLedger", "Pool", "Shortfall", "combined", "saturating_sum"]
