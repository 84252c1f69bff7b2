"""What is right: a solution's process, the cases, the truth, the checks, the verdict."""
