"""Declare the stages of an iteration: each module has one `STAGE`, with what it reads, does and writes."""
