"""Make tasks of pages, sites and game rules that nobody wrote tasks for, and test the verifiers of tasks."""
