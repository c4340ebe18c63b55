"""The placement engine: which node runs a workload, and why (G 1). Pure; the workload's kind is never looked at."""

from actors.placement.engine.explain import explain
from actors.placement.engine.place import place
from messages.engine import PlacementError

__all__ = ["PlacementError", "explain", "place"]
