"""Recognize speech as words with times."""
