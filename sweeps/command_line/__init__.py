"""The command line: options, their translation to a sweep, error lines, listings. Imports nothing heavy."""
