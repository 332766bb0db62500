"""How a change is let in, staged, seen and taken back, whichever operation wants it."""
