"""What moves the bytes: one thread over every pump and socket of an edges process (design 7, E 5)."""
