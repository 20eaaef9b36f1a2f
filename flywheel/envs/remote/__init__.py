"""Lease environments on many machines: nodes have them, a manager leases them, a client plays.

The manager decides and remembers who has what (`manager.py`). Steps do not go through it: a lease says which node has
the session, and is signed, so that a node needs to ask nobody (`node_server.py`; `node_session.py`: one lease of it).
People look on by `watch.py`. Who plays is `client.py`.
"""
