"""Hold the environment back-ends (`flywheel.envs.registry`): each a module or a package, named after the back-end."""
