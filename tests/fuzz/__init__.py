"""Coverage-guided fuzzing of everything that reads foreign files and text (README.md says how to run it)."""
