"""What was compiled, for people: programs, targets and passes as rows and drawings; logs with their lines."""
