"""Play the tasks of OSWorld: read their JSON files, set them up in a machine and judge them."""
