"""Configuration: settings, API keys, units, and the reference of all settings."""
