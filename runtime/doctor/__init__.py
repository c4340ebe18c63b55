"""What a machine and a cluster directory need, checked before or while it runs: `sennit doctor` (design 11)."""
