"""Make the tasks of iterations: draw them, hold templates out, open levels; and grounding examples of screens."""
