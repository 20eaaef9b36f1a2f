"""A mailbox: folders and labels, conversations, writing, rules, contacts; in English and Chinese."""

from flywheel.worlds.mail import keeping, tasks_keeping, tasks_mails, tasks_writing

SITE = keeping.site.offer((*tasks_mails.TASKS, *tasks_writing.TASKS, *tasks_keeping.TASKS))
