"""Make synthetic sessions and demonstrations, whose true thoughts and times are known."""
