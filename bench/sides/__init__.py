"""What the measurements share: the input that both sides work off, and the processes that do it."""
