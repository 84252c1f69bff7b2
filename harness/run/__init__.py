"""What is asked for: the command line, one evaluation, many of them, a cluster."""
