"""What a model is adapted to: one file a task; `core` holds what the tasks share."""
