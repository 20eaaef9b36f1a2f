"""Test the verifiers of tasks: known solutions and other legal ends must pass, changed end states must fail."""

__all__ = ["run"]
