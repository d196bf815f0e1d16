"""The report of a study: scores, choice of configs, summary, answers, table and plot."""
