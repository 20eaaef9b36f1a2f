"""Take gradient steps of one model in one process or several."""
