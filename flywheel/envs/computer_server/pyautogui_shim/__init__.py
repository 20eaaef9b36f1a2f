"""Hold a module that stands in for the package PyAutoGUI in programs inside a machine, where that is not installed."""
