"""Status: samples, lag, rates, progress, and their HTTP views."""
