"""What a study found: scores, choice of configs, summary, answers, table and plot."""
