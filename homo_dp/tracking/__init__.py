"""What a run leaves behind: MLflow, indicators, predictions, plots, reports."""
