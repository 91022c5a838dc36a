"""The process that outlives the driver: no JVM, no pyspark, no pyarrow."""
