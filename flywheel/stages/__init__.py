"""The stages of a turn. A file with a `STAGE` is one stage: what it reads, what it does, what it writes."""
