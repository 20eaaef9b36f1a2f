"""The commands of `flywheel`, by what they are for. Heavy imports stand inside them: `--help` answers at once."""
