"""Define the site `forum`: boards, topics with pages of replies, votes, members, messages, moderation."""

from flywheel.envs.suites.forum import tasks_marks, tasks_moderation, tasks_people, tasks_reading, tasks_writing
from flywheel.envs.suites.forum.posting import site

SITE = site.offer(
    (*tasks_reading.TASKS, *tasks_marks.TASKS, *tasks_writing.TASKS, *tasks_people.TASKS, *tasks_moderation.TASKS)
)
