"""Draw tasks with files, tables, settings, code and services, each template a family of tasks.

A family draws what is there at the beginning and what is wanted at the end, and has an expert that brings it about.
What is wanted is worked out here, never by running what the expert runs.
"""
