"""Define the site `settings`: switches, choices, networks, devices, apps, users, account; and a small edition."""

from flywheel.envs.suites.settings import tasks_networks, tasks_people, tasks_switches
from flywheel.envs.suites.settings.pages import site

SITE = site.offer((*tasks_switches.TASKS, *tasks_networks.TASKS, *tasks_people.TASKS))
