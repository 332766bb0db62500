"""How a change is staged, seen and taken back, whichever operation wants it."""
