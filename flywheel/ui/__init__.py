"""Show runs and data to people: the report, the explorer, the annotation page."""
