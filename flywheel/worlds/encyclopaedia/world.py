"""An encyclopaedia of elements, countries, cities and discoverers: search, tables, links, a reading list and notes."""

from flywheel.worlds.encyclopaedia.pages import site
from flywheel.worlds.encyclopaedia.questions import QUESTIONS
from flywheel.worlds.encyclopaedia.tasks import TASKS

SITE = site.offer((*TASKS, *QUESTIONS))
