"""Define what the agent reads and writes: actions, the prompt of a step with its history, the parsing of answers."""
