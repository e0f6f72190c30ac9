"""A command as it is against the same command governed: how long, how much CPU, and whether the outputs are equal."""
