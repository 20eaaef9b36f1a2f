"""Lease environments across machines: nodes host them, a manager leases them, clients play them.

The manager (`manager.py`) decides who gets which environment, and records it. Steps do not pass through it: a lease
names the node of the session and is signed, so that the node (`node_server.py`, with a `node_session.py` for each
lease) need not ask the manager. `client.py` plays the environments; `watch.py` shows them to people.
"""
