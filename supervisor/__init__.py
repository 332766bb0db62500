"""Supervisor: starts, watches and stops the processes of a service. Also the command `topics`."""
