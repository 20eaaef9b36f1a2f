"""Attack the verifiers of tasks: known solutions must pass, changed end states fail, other legal ways pass (2.5.1)."""
