"""Run phones for agents: an emulated one, whose applications are the package's sites, and real ones by ADB."""
