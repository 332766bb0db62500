"""What every process needs of its own: log lines, traces, memory, an end with its supervisor's."""
