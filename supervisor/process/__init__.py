"""Processes of the service, and the directories, sockets and locks that they share."""
