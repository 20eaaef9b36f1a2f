"""Recognize the speech of recordings as words with times, by PocketSphinx or Whisper."""

__all__ = ["recognizer", "whisper"]
