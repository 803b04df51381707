"""A run of an experiment on this machine, to be put down and taken up again."""
