"""Hold the environment back-ends: each a module or a package, named after the back-end."""
