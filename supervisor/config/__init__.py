"""What is configured: settings, keys, their units and their reference. Nothing here starts anything."""
