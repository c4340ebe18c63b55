"""How rings reach workloads and come back: a channel to each run, and the proof that a run is gone (design 7, E 6)."""
