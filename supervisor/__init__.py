"""Starts, watches and ends the processes of a service; and the command `topics`."""
