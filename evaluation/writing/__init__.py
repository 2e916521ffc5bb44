"""The online simulation with free text: its judge, its environments, and how far it agrees with the rules."""
