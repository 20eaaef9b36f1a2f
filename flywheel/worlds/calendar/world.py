"""Calendars: month, week, day and agenda, events that repeat, invitations, free time, working hours."""

from flywheel.worlds.calendar import editing, tasks_events, tasks_lookup, tasks_sharing

SITE = editing.site.offer((*tasks_lookup.TASKS, *tasks_events.TASKS, *tasks_sharing.TASKS))
