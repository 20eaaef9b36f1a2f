"""Define the site `mail`, in English and Chinese: folders, labels, conversations, writing, rules, contacts."""

from flywheel.envs.suites.mail import (
    keeping,
    tasks_contacts,
    tasks_lookup,
    tasks_mails,
    tasks_settings,
    tasks_sorting,
    tasks_writing,
)

SITE = keeping.site.offer(
    (
        *tasks_lookup.TASKS,
        *tasks_mails.TASKS,
        *tasks_sorting.TASKS,
        *tasks_writing.TASKS,
        *tasks_contacts.TASKS,
        *tasks_settings.TASKS,
    )
)
