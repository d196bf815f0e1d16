"""What methods pick, scored: methods, protocols, rows, thresholds, tests, stopping."""
