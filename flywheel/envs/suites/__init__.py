"""Hold the shipped suites of tasks: sites, games, desks, phones and shells, with their verifiers and experts."""
