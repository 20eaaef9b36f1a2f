"""Tasks that are written for OSWorld: read from its JSON files, set up and judged here as they say."""
