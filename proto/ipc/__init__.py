"""Inter-process communication: messages, control messages, links and their transport."""
