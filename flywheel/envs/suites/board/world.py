"""A project board: projects, columns of cards, sprints, a report, members."""

from flywheel.envs.suites.board import cards, tasks_cards, tasks_lookup, tasks_team, team
from flywheel.envs.suites.board.pages import site

PAGES = (cards, team)  # they declare their pages on the site when they are imported
SITE = site.offer((*tasks_lookup.TASKS, *tasks_cards.TASKS, *tasks_team.TASKS))
