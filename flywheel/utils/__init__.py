"""Provide helpers that know nothing of the flywheel: files, processes, errors, ports, intervals."""
