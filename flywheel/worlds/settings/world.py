"""The settings of a device: switches, choices, networks, devices, apps, users, an account; and a small edition."""

from flywheel.worlds.settings import tasks_device, tasks_people
from flywheel.worlds.settings.pages import site

SITE = site.offer((*tasks_device.TASKS, *tasks_people.TASKS))
