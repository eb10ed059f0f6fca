"""What starts executions by itself: rounds, intervals, bootstraps."""
