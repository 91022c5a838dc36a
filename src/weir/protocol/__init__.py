"""Pure: messages, state tables and decisions. No I/O, no threads, no Spark, no clock reads."""
