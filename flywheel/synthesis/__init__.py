"""Make tasks of pages, sites and rules that nobody wrote tasks for, and try the verifiers of tasks (section 2.5.1)."""
