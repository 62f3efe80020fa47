"""Users of one table, trained together in cohorts."""
