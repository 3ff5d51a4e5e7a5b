"""Tables, plots and analyses of a finished or running sweep."""
