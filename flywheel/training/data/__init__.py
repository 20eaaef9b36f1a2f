"""Build training samples from trajectories and from the training stores."""
