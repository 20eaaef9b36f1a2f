"""Define the site `files`, a file manager: folders, moving and copying, trash, sharing, an editor with versions."""

from flywheel.envs.suites.files import tasks_lookup, tasks_moving, tasks_sharing
from flywheel.envs.suites.files.changing import site

SITE = site.offer((*tasks_lookup.TASKS, *tasks_moving.TASKS, *tasks_sharing.TASKS))
