"""One script per speed claim; a comparison runs both sides in turn and prints the ratio with its spread."""
