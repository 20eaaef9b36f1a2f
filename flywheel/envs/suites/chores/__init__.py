"""Draw tasks with files, tables, settings, code and services; each template is a family of tasks.

A family draws the state at the beginning and the one that is wanted at the end, and has an expert that gets there. The
wanted state is computed here in Python, never by running what the expert runs.
"""
