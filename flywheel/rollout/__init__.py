"""Let a policy act in environments: play episodes, pool them for RL, restore states, and correct failed episodes."""
