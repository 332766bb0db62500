"""The service as processes, and the directories, sockets and locks that they share."""
