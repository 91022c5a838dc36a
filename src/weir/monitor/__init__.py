"""What can be seen of a job, for the command line, REST, pages and metrics alike."""
