"""OS processes: started by spawn, seen to end by pidfd, reaped in one place (design 6)."""
