"""The path of data, as the author of a job writes it."""
