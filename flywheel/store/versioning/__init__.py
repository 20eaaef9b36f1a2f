"""Version stages' outputs by DVC and git: stage records, tags, backups to a remote."""
