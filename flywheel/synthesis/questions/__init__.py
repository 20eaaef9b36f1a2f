"""Make questions of several pages whose answers are proved: `flywheel tasks questions`."""
