"""Adapt public benchmarks: their task files, actions and recorded results, in their own forms, and their scores."""
