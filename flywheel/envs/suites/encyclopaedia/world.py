"""Define the site `encyclopaedia`: elements, countries, cities, discoverers; search, tables, reading list, notes."""

from flywheel.envs.suites.encyclopaedia import tasks_chains, tasks_facts, tasks_reading
from flywheel.envs.suites.encyclopaedia.pages import site

SITE = site.offer((*tasks_reading.TASKS, *tasks_facts.TASKS, *tasks_chains.TASKS))
