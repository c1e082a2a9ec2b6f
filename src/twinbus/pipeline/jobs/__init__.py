"""What is done with messages on Spark: one file a job, its logic as DataFrame → DataFrame."""
