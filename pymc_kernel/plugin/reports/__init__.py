"""What draws say of themselves, in tables, words and pictures."""
