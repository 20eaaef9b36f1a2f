# What the shell of a person who takes over begins with: nothing that the agent has written.
PS1='\w\$ '
