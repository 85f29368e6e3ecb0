"""What is timed, and how: not installed, run from the checkout as `python -m benchmarks.timer`."""
