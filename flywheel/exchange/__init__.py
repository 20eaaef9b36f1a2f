"""Data of other formats: demonstrations of published data sets come in, the training stores go out."""
