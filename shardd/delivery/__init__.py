"""Who is told what, and when: reads, long polls, streams, and whose turn it is."""
