"""Define the site `shop`: departments, filters, cart, checkout, orders, wish list, account; and a small edition."""

from flywheel.envs.suites.shop import orders, tasks_account, tasks_cart, tasks_lookup

SITE = orders.site.offer((*tasks_lookup.TASKS, *tasks_cart.TASKS, *tasks_account.TASKS))
