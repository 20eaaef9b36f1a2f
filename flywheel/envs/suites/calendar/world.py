"""Define the site `calendar`: views, repeating events, invitations, free time, working hours."""

from flywheel.envs.suites.calendar import (
    editing,
    tasks_calendars,
    tasks_events,
    tasks_invitations,
    tasks_lookup,
    tasks_new_events,
)

SITE = editing.site.offer(
    (
        *tasks_lookup.TASKS,
        *tasks_new_events.TASKS,
        *tasks_events.TASKS,
        *tasks_invitations.TASKS,
        *tasks_calendars.TASKS,
    )
)
