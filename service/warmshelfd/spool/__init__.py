"""Where pushed files are kept until their artifact is removed."""
