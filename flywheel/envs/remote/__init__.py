"""Lease environments on many machines: nodes have them, a manager leases them, a client plays.

The manager decides and remembers who has what (`manager.py`), and is asked by HTTP (`manager.py`). Steps do not go
through it: a lease says which node has the session, and is signed, so that a node needs to ask nobody
(`node_server.py`). Who plays is `flywheel.envs.remote.client`.
"""
