"""What people look at: tables and plots of a finished or running sweep."""
