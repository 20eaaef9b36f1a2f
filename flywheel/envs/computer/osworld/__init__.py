"""Play the tasks of OSWorld: read its JSON files, set them up and judge them as they say."""
