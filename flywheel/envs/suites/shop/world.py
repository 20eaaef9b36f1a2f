"""A shop: departments, filters, a cart, a checkout, orders, a wish list, an account; and a small edition."""

from flywheel.envs.suites.shop import orders, tasks_account, tasks_cart, tasks_lookup

SITE = orders.site.offer((*tasks_lookup.TASKS, *tasks_cart.TASKS, *tasks_account.TASKS))
