"""The commands of `topics`, a module for each noun. Each is imported when its command runs; `main` has the table."""
