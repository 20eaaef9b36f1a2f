"""Environments on many machines: nodes have them, a manager leases them, who plays speaks to the node.

The manager decides and remembers who has what (`ledger.py`), and is asked by HTTP (`server.py`). Steps do not go
through it: a lease says which node has the session, and is signed, so that a node needs to ask nobody (`node.py`). Who
plays is `flywheel.environments.managed`.
"""
