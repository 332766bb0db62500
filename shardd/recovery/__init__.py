"""From files back to memory after a stop of any kind."""
