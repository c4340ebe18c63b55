"""Scenarios: scripts of a cluster's life, in TOML, played on real processes (design 10)."""
