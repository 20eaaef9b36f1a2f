"""Environments that an agent acts in: the contract, the back-ends and who lends them."""
