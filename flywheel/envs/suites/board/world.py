"""Define the site `board`, a project board: projects, columns of cards, sprints, a report, members."""

from flywheel.envs.suites.board import cards, tasks_cards, tasks_lookup, tasks_team, team
from flywheel.envs.suites.board.pages import site

PAGES = (cards, team)  # importing them registers their pages with the site
SITE = site.offer((*tasks_lookup.TASKS, *tasks_cards.TASKS, *tasks_team.TASKS))
