"""From an order to what is placed: the verified package, offered to the nodes, and what it asks of them (P 6.2)."""

from __future__ import annotations

from dataclasses import dataclass

from actors.actor import AskFailed, Context
from actors.packages.fault import PackageFault
from actors.packages.spec import workload_spec
from actors.packages.store import import_package
from actors.placement.core import Core
from actors.placement.order import PlaneRefusal, needs_attached_hardware, slot_of
from messages.packages import Offer, VerifiedWorkload
from messages.placement import PlaceOrder, PlaneError
from messages.workload_spec import WorkloadSpec

UNKNOWN_KIND = "unknown workload kind"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A package that was verified here and may be fetched from here."""

    workload: VerifiedWorkload
    spec: WorkloadSpec
    slot: str
    hardware_bound: bool


async def prepare(core: Core, ctx: Context, order: PlaceOrder, pin: str | None) -> Prepared:
    """Verify and import the package, offer it, derive specification and slot.

    Raises `PlaneRefusal`: `unknown_kind`, `package`.
    """
    timeout_s = core.settings.place_timeout_s
    try:
        workload = await import_package(
            ctx,
            blobs=core.addresses.blobs,
            directory=order.package_dir,
            anchors=core.anchors,
            timeout_s=timeout_s,
        )
    except PackageFault as fault:
        code = PlaneError.UNKNOWN_KIND if UNKNOWN_KIND in fault.text else PlaneError.PACKAGE
        raise PlaneRefusal(code, str(fault)) from None
    try:
        offered = await ctx.ask(core.addresses.packages, Offer(manifest_hash=workload.manifest_hash), timeout_s)
    except AskFailed as failure:
        raise PlaneRefusal(PlaneError.PACKAGE, f"the package cannot be offered to the nodes: {failure}") from None
    if offered.package_id != workload.package_id:
        raise PlaneRefusal(PlaneError.PACKAGE, "the package changed between verification and offer; place it again")
    spec = workload_spec(workload)
    slot = slot_of(
        kind=workload.kind,
        workload=workload.id,
        version=workload.version,
        package_id=workload.package_id,
        config=order.config,
        pinned_to=pin,
    )
    return Prepared(workload=workload, spec=spec, slot=slot, hardware_bound=needs_attached_hardware(spec))


__all__ = ["Prepared", "prepare"]
