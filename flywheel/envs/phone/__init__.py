"""Run phones for agents: an emulated one, whose applications are the shipped sites, and real ones by ADB."""
