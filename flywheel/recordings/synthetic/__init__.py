"""Made sessions, whose truth is known, and measuring by them."""
