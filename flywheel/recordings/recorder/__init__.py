"""Record a person's work on their own desktop as a session (`session.py`): input, screens, speech, on one clock."""
