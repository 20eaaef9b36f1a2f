"""Take gradient steps in one process or several."""
