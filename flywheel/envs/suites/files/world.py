"""A file manager: folders, moving and copying, the trash, sharing, a small editor with versions."""

from flywheel.envs.suites.files import tasks_lookup, tasks_moving, tasks_sharing
from flywheel.envs.suites.files.changing import site

SITE = site.offer((*tasks_lookup.TASKS, *tasks_moving.TASKS, *tasks_sharing.TASKS))
