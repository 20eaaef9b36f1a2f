"""The kinds of environments: a file, or a folder, each; its name is the kind's."""
