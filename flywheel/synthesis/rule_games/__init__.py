"""Make new small games: compose rules, draw their levels, and keep what passes every gate (docs/rule-games.md)."""
