"""Coverage-guided fuzzing of everything that reads what strangers wrote. See ``__main__``."""
