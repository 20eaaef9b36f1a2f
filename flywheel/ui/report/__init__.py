"""Write the static report of a workspace: figures, charts, replays."""
