"""GitHub: events in, writes out."""
