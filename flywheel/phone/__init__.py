"""Phones: an emulated one, whose applications are the sites of the package, and real ones by ADB."""
