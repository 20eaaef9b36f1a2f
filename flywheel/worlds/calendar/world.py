"""Calendars: month, week, day and agenda, events that repeat, invitations, free time, working hours."""

from flywheel.worlds.calendar import editing, tasks_events, tasks_looking, tasks_sharing

SITE = editing.site.offer((*tasks_looking.TASKS, *tasks_events.TASKS, *tasks_sharing.TASKS))
