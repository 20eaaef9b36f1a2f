"""Make synthetic recorded sessions, whose true thoughts and times are known, and demonstrations by programs."""
