"""Changes of topics: admission, staging, commit and undo. Every changing operation uses these modules."""
