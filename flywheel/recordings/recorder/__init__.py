"""Record a person's work on their own desktop or in a browser as a session (`session.py`): input, screens, speech."""

__all__ = ["accessibility", "browser_recorder", "gestures", "recorder", "review_page"]
