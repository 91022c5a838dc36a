"""The process that holds Spark."""
