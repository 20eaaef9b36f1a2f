"""CT and SFT."""
