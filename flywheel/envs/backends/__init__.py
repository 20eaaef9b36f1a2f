"""Hold the environment back-ends: one file, or one folder, each, named as the back-end."""
