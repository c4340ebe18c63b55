"""The process a workload runs under, and its client (design 6)."""
