"""What runs: bound ops, executions, and the loop over them."""
