"""What weir knows of Spark: its session, its own files, its failures."""
